//! The mode parameters that initiators can change (SPC-4 7.5.8): D_SENSE, QERR, SWP and TAS of the control page. They
//! are shared by all nexuses; saved values survive resets and restarts.

use crate::saved::{MALFORMED, truth};

/// The changeable bits of the control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    /// D_SENSE: sense data in descriptor format (byte 2).
    pub(crate) descriptor_sense: bool,
    /// QERR: how an error affects other commands (byte 3).
    pub(crate) queue_error: QueueError,
    /// SWP: software write protect (byte 4).
    pub(crate) write_protect: bool,
    /// TAS: whether a command aborted by another nexus ends with TASK ABORTED (byte 5).
    pub(crate) task_aborted_status: bool,
}

impl Default for Control {
    /// TAS is set, as on LIO: otherwise an initiator whose only command was aborted by another initiator's reset hears
    /// nothing until its own time limit, 30 s on Linux.
    fn default() -> Control {
        Control {
            descriptor_sense: false,
            queue_error: QueueError::GoOn,
            write_protect: false,
            task_aborted_status: true,
        }
    }
}

/// QERR: which commands of the task set are aborted when one of them ends with CHECK CONDITION. The discriminant is
/// the field's value; 10b is reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueError {
    /// None.
    #[default]
    GoOn = 0b00,
    /// All commands, of any nexus.
    AbortAll = 0b01,
    /// The commands of the nexus that got the error.
    AbortOwn = 0b11,
}

impl QueueError {
    pub(crate) fn from_code(code: u8) -> Option<QueueError> {
        let all = [QueueError::GoOn, QueueError::AbortAll, QueueError::AbortOwn];
        all.into_iter().find(|known| *known as u8 == code)
    }
}

/// Current and saved mode parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModeParameters {
    pub(crate) current: Control,
    pub(crate) saved: Control,
}

impl ModeParameters {
    /// Restores the saved values, as on a reset.
    pub(crate) fn reset(&mut self) {
        self.current = self.saved;
    }

    pub(crate) fn save(&self) -> String {
        if self.saved == Control::default() {
            return String::new();
        }
        let Control {
            descriptor_sense,
            queue_error,
            write_protect,
            task_aborted_status,
        } = self.saved;
        let [sense, protect, told] =
            [descriptor_sense, write_protect, task_aborted_status].map(u8::from);
        format!("control {sense} {protect} {} {told}\n", queue_error as u8)
    }

    /// Restores the saved values, given in words. A line with only two was written by an older version. The error says
    /// what is wrong with it.
    pub(crate) fn restore(&mut self, values: &[&str]) -> Result<(), &'static str> {
        let (sense, protect, queue_error, told) = match *values {
            [sense, protect] => (sense, protect, "0", "1"),
            [sense, protect, queue_error, told] => (sense, protect, queue_error, told),
            _ => return Err(MALFORMED),
        };
        let code = queue_error.parse().ok().and_then(QueueError::from_code);
        self.saved = Control {
            descriptor_sense: truth(sense)?,
            write_protect: truth(protect)?,
            queue_error: code.ok_or(MALFORMED)?,
            task_aborted_status: truth(told)?,
        };
        self.current = self.saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kept;

    #[test]
    fn saved_values_come_back_also_from_an_older_version() {
        let saved = Control {
            descriptor_sense: true,
            queue_error: QueueError::AbortOwn,
            write_protect: false,
            task_aborted_status: true,
        };
        let mut mode = ModeParameters::default();
        assert_eq!(mode.save(), "");
        mode.saved = saved;
        let restored = |text: &str| text.parse::<Kept>().expect("as saved").mode;
        mode.current = saved;
        assert_eq!(restored(&mode.save()), mode);
        let older = Control {
            write_protect: true,
            ..Control::default()
        };
        assert_eq!(restored("control 0 1\n").current, older);
    }
}
