//! RESERVE (6) and RELEASE (6) (SPC-2 7.21, 7.16): reserves the whole unit for one nexus until it releases the unit
//! or is lost. If there are persistent registrations, they do nothing for a registrant and are refused to others
//! (SPC-4 5.13.3, compatible reservation handling: CRH).

use super::Command;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::sense::Sense;
use crate::unit::LogicalUnit;

/// Third-party reservations and extents are obsolete.
const OBSOLETE: u8 = 0x1F;

pub(crate) fn decode_reserve(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, OBSOLETE)?;
    Ok(Command::Reserve)
}

pub(crate) fn decode_release(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, OBSOLETE)?;
    Ok(Command::Release)
}

pub(super) fn reserve(unit: &LogicalUnit, nexus: NexusId) -> Action {
    Action::End(unit.shared().change(|state| {
        if !unit.admits(state, nexus) {
            return Ending::CONFLICT;
        }
        if !state.reservations.registrations().is_empty() {
            let name = unit.name_of(state, nexus);
            return match state.reservations.key_of(&name) {
                Some(_) => Ending::GOOD,
                None => Ending::CONFLICT,
            };
        }
        // Another view may have reserved it for another nexus since this command was admitted.
        let holder = match (unit.shape().reads_only, state.reserved_by) {
            (false, _) => state.reserved_by.get_or_insert(nexus),
            (true, None) => state.reserved_by_reader.get_or_insert(nexus),
            (true, Some(_)) => return Ending::CONFLICT,
        };
        match *holder == nexus {
            true => Ending::GOOD,
            false => Ending::CONFLICT,
        }
    }))
}

pub(super) fn release(unit: &LogicalUnit, nexus: NexusId) -> Action {
    unit.shared().change(|state| state.release(nexus));
    Action::End(Ending::GOOD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::*;

    #[test]
    fn of_two_that_are_let_in_at_once_one_gets_it() {
        let (first, second) = two_views(thick());
        // Both lanes passed the check before either changed anything.
        assert_eq!(reserve(&first, NEXUS), good());
        assert_eq!(reserve(&second, OTHER), Action::End(Ending::CONFLICT));
        release(&second, OTHER);
        assert_eq!(reserve(&second, OTHER), Action::End(Ending::CONFLICT));
        release(&first, NEXUS);
        assert_eq!(reserve(&second, OTHER), good());
    }
}
