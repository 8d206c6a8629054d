//! The LUN field by which a target knows a logical unit. Every target knows numbers below 256 by the same field. Above,
//! SAM-5 wants the flat method, but Linux's target (LIO) writes the plain number into the first two bytes, and knows it by
//! that alone. So the target is asked for its LUNs, and addressed as it writes them itself.

use std::rc::Rc;

use iscsi::LunField;
use scsi::{Lun, Status};

use super::{
    cdb,
    session::{Data, Session},
};
use crate::Result;

/// Numbers below this one are written alike by all targets.
const PLAIN_BELOW: u16 = 256;
/// The longest list that is read, in bytes: as many LUNs as the flat method addresses.
const LIST_BYTES: usize = 8 + 8 * (1 << 14);

/// The field by which the target of `session` knows LUN `number`.
///
/// # Errors
/// When the session ends before the target has answered.
pub(super) async fn field_of(session: &Rc<Session>, number: u16) -> Result<LunField> {
    let lun = Lun::from(number);
    if number < PLAIN_BELOW {
        return Ok(lun.encode().into());
    }
    let command = cdb::report_luns(LIST_BYTES as u32);
    let any = LunField::from(Lun::from(0).encode());
    let reply = session.execute(any, &command, Data::In(LIST_BYTES)).await?;
    let list = match reply.status == Status::Good as u8 {
        true => reply.data.to_vec(),
        // It does not say, so it is addressed by the standard.
        false => Vec::new(),
    };
    Ok(choose(lun, &list).into())
}

/// The field for `lun` at a target that has answered REPORT LUNS with `list`.
fn choose(lun: Lun, list: &[u8]) -> [u8; 8] {
    let mut fields = list.get(8..).unwrap_or_default().chunks_exact(8);
    let plain = lun.encode_plain();
    let is_plain = plain.filter(|plain| fields.any(|field| field == plain));
    is_plain.unwrap_or_else(|| lun.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_addressed_as_it_writes_its_luns() {
        let (flat, plain) = ([0x41, 0x2c], [0x01, 0x2c]);
        for (reported, expected) in [
            (&[[0, 0], flat][..], flat),
            (&[[0, 0], [0, 5], plain], plain),
            // Linux's target, with LUN 16684 beside.
            (&[flat, plain], plain),
            (&[[0, 44]], flat),
            (&[], flat),
        ] {
            let mut list = vec![0; 8];
            for field in reported {
                list.extend([field[0], field[1], 0, 0, 0, 0, 0, 0]);
            }
            assert_eq!(choose(Lun::from(300), &list)[..2], expected);
            list.truncate(list.len() - 1);
            choose(Lun::from(300), &list);
        }
        assert_eq!(choose(Lun::from(300), &[0; 7])[..2], flat);
    }
}
