//! `sanstone volume compare`: reads all copies of the mirrors of a volume, while it is used, and says where they differ. The
//! exit code is for scripts: 0 they are equal, 1 they differ, 2 they could not be compared.

use node::description::Description;

use crate::{
    admin::{self, AdminCall, Compared},
    failure::VerbFailure,
    mirror_status::{self, StatusCall},
    output,
};

/// Compares the copies of the mirrors in the volume that `call` names; returns the exit code.
pub(crate) fn run(call: &StatusCall) -> Result<u8, VerbFailure> {
    let name = &call.name;
    let wrong = |error: VerbFailure| {
        VerbFailure::Wrong(format!("volume \"{name}\" cannot be compared: {error}"))
    };
    let state = call.place.state_with(Some(&call.name))?;
    let description: Description = admin::ask(&state, AdminCall::Show).map_err(wrong)?;
    let mut are_equal = true;
    for mirror in mirror_status::paths(&description, name)? {
        let (mut at_bytes, mut ranges, mut bytes) = (0, 0_u64, 0);
        loop {
            let asked = AdminCall::Compare {
                mirror: mirror.clone(),
                at_bytes,
            };
            let part: Compared = admin::ask(&state, asked).map_err(wrong)?;
            for (start, end) in part.differ {
                output::print(format!(
                    "{mirror}: the copies differ from byte {start} to {end}\n"
                ))?;
                ranges += 1;
                bytes += end - start;
            }
            if part.next_bytes >= part.len_bytes || part.next_bytes <= at_bytes {
                break;
            }
            at_bytes = part.next_bytes;
        }
        are_equal &= ranges == 0;
        let line = match ranges {
            0 => format!("{mirror}: the copies are equal\n"),
            _ => format!("{mirror}: the copies differ in {bytes} bytes, in {ranges} ranges\n"),
        };
        output::print(line)?;
    }
    Ok(u8::from(!are_equal))
}
