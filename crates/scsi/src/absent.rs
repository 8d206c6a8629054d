//! Commands to a LUN without a logical unit (SPC-4 6.6; SAM-5, incorrect logical unit numbers): INQUIRY says that
//! there is none, REPORT LUNS lists those that exist, REQUEST SENSE reports the error, and everything else is
//! refused.

use crate::action::Action;
use crate::commands::Command;
use crate::ending::{Ending, Status};
use crate::identity::Identity;
use crate::sense::{Asc, Sense, SenseKey};

/// LOGICAL UNIT NOT SUPPORTED.
const NOT_SUPPORTED: Sense = Sense::new(SenseKey::IllegalRequest, Asc::LOGICAL_UNIT_NOT_SUPPORTED);

/// The ending of a command whose logical unit was removed after the command had begun.
pub const TAKEN_AWAY: Ending = Ending {
    status: Status::CheckCondition,
    sense: Some(NOT_SUPPORTED),
};

/// Answers a command to a LUN without a logical unit. `vendor`, `product` and `revision` of the INQUIRY data come
/// from `target`, the identity of any disk of the same target or a bare one. Never asks for the medium or for
/// data-out.
pub fn begin(target: &Identity, cdb: &[u8]) -> Action {
    match Command::decode(cdb) {
        Ok(Command::Inquiry(command)) => command.begin_absent(target).into(),
        Ok(Command::ReportLuns(command)) => Action::ReportLuns(command),
        Ok(Command::RequestSense(command)) => Action::Reply(command.reply(NOT_SUPPORTED)),
        Ok(_) | Err(_) => Action::End(Ending::check(NOT_SUPPORTED)),
    }
}
