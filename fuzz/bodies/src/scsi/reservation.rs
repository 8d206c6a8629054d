//! The persistent reservation as PERSISTENT RESERVE IN tells it (SPC-4 6.14), and whom it lets do
//! what: read independently of the code that enforces it.

use scsi::LogicalUnit;

use super::cdb::ask;

/// The reservation type that is held and who is registered.
#[derive(Debug)]
pub(super) struct Held {
    kind: u8,
    registrants: Vec<Registrant>,
}

#[derive(Debug)]
struct Registrant {
    name: String,
    port: u16,
    is_holder: bool,
}

impl Held {
    /// READ FULL STATUS; `None` if nothing is reserved or nobody may ask.
    pub(super) fn look(unit: &mut LogicalUnit) -> Option<Held> {
        let status = ask(unit, &[0x5e, 3, 0, 0, 0, 0, 0, 0xff, 0xff, 0])?;
        let mut rest = &status[8..];
        let mut held = Held {
            kind: 0,
            registrants: Vec::new(),
        };
        while let Some((head, tail)) = rest.split_first_chunk::<24>() {
            let len = u32::from_be_bytes([head[20], head[21], head[22], head[23]]) as usize;
            let (id, after) = tail.split_at_checked(len)?;
            let text = id[4..].split(|byte| *byte == 0).next()?;
            let is_holder = head[12] & 1 != 0;
            if is_holder {
                held.kind = head[13] & 0x0f;
            }
            held.registrants.push(Registrant {
                name: String::from_utf8(text.to_vec()).ok()?,
                port: u16::from_be_bytes([head[18], head[19]]),
                is_holder,
            });
            rest = after;
        }
        (held.kind != 0).then_some(held)
    }

    /// Whether the nexus of these ports may write, or read (SPC-4 5.12, SBC-3 4.17).
    pub(super) fn lets(&self, name: &str, port: u16, writes: bool) -> bool {
        let mut own = self
            .registrants
            .iter()
            .filter(|r| r.name == name && r.port == port);
        let own = own.next();
        match self.kind {
            1 | 3 if own.is_some_and(|own| own.is_holder) => true,
            5..=8 if own.is_some() => true,
            3 | 6 | 8 => false,
            _ => !writes,
        }
    }
}
