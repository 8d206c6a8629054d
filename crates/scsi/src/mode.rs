//! Mode parameters that initiators can change (SPC-4 7.5.8): of the control page D_SENSE and SWP.
//! They are common to all nexuses; saved ones survive resets and restarts.

/// The changeable bits of the control page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Sense data in descriptor format (byte 2).
    pub(crate) descriptor_sense: bool,
    /// Software write protect (byte 4).
    pub(crate) write_protect: bool,
}

/// Current and saved values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModeParameters {
    pub(crate) current: Control,
    pub(crate) saved: Control,
}

impl ModeParameters {
    /// A reset brings back the saved values.
    pub(crate) fn reset(&mut self) {
        self.current = self.saved;
    }

    pub(crate) fn save(&self) -> String {
        if self.saved == Control::default() {
            return String::new();
        }
        let (sense, protect) = (self.saved.descriptor_sense, self.saved.write_protect);
        format!("control {} {}\n", u8::from(sense), u8::from(protect))
    }

    pub(crate) fn restore(&mut self, text: &str) {
        for line in text.lines() {
            if let ["control", sense, protect] = line.split(' ').collect::<Vec<_>>()[..] {
                self.saved = Control {
                    descriptor_sense: sense == "1",
                    write_protect: protect == "1",
                };
                self.current = self.saved;
            }
        }
    }
}
