//! The path of a command through its logical unit, from CDB to action: what its nexus has to be told first, whether a
//! reservation, a sanitize, an ejected medium or the port forbids it, then what the command itself asks for.

use crate::action::{Action, ParameterList};
use crate::attention::Attention;
use crate::cdb::Cdb;
use crate::commands::Command;
use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::opcodes::TABLE;
use crate::sanitize_state::SanitizeState;
use crate::sense::{Asc, Sense, SenseKey};
use crate::shape::WRITE_PROTECTED;
use crate::unit::LogicalUnit;

impl LogicalUnit {
    /// Starts a command: `cdb` as received, padded or not. No data has been transferred yet, so a failure found here
    /// costs no data-out.
    ///
    /// The first command of a new nexus, and the first after a change, is answered with a unit attention instead,
    /// unless it is INQUIRY, REPORT LUNS or REQUEST SENSE (SAM-5 5.14). Once 4096 nexuses are remembered, new ones
    /// get BUSY.
    pub fn begin(&mut self, nexus: NexusId, cdb: &[u8]) -> Action {
        self.refresh();
        let command = Command::decode(cdb);
        if !self.is_quiet(nexus) {
            if let Some(answer) = self.tell_first(nexus, &command) {
                return answer;
            }
        }
        if let Ok(command) = &command {
            if !self.rights().allow(nexus, command.access()) {
                return Action::End(Ending::CONFLICT);
            }
            if self.rights().sanitizing && !command.passes_sanitize() {
                // A new sanitize may follow a failed one, but two may not run at once.
                if let Some(progress) = self.shared().look().sanitize {
                    return Action::End(Ending::check(progress.sense()));
                }
            }
            if self.is_ejected() && command.needs_medium() {
                let sense = Sense::new(SenseKey::NotReady, Asc::MEDIUM_NOT_PRESENT);
                return Action::End(Ending::check(sense));
            }
            if self.shape().reads_only && command.changes_others() {
                return Action::End(Ending::check(WRITE_PROTECTED));
            }
        }
        let mut action = command
            .and_then(|command| command.begin(self, nexus, &TABLE))
            .into();
        if let Action::Parameters(list) = &mut action {
            list.nexus = nexus;
            list.cdb = Cdb::new(cdb);
        }
        action
    }

    /// Reports the pending unit attention of a nexus, unless the command is exempt (SPC-4: INQUIRY, REPORT LUNS,
    /// REQUEST SENSE).
    fn tell_first(&mut self, nexus: NexusId, command: &Result<Command, Sense>) -> Option<Action> {
        let shared = self.shared().clone();
        let mut state = shared.look();
        if state.attentions.know(nexus).is_err() {
            return Some(Action::End(Ending::BUSY));
        }
        if !state.names().contains_key(&nexus) {
            let name = self.name_of(&state, nexus);
            state.name(nexus, name);
        }
        match command {
            Ok(Command::Inquiry(_)) => None,
            Ok(Command::ReportLuns(_)) => {
                state
                    .attentions
                    .withdraw(nexus, Attention::ReportedLunsChanged);
                None
            }
            Ok(Command::RequestSense(request)) => {
                let waiting = self.take_from(&mut state, nexus).map(Attention::sense);
                let waiting = waiting.or(state.sanitize.map(SanitizeState::sense));
                Some(Action::Reply(request.reply(waiting.unwrap_or(Sense::NONE))))
            }
            _ => match self.take_from(&mut state, nexus) {
                Some(attention) => Some(Action::End(Ending::check(attention.sense()))),
                None => {
                    self.set_quiet(nexus);
                    None
                }
            },
        }
    }

    /// Continues a command whose parameter list has arrived. Never asks for another list.
    pub fn resume(&mut self, list: ParameterList, data: &[u8]) -> Action {
        self.refresh();
        let (nexus, len) = (list.nexus, list.len_bytes() as usize);
        let command = Command::decode(list.cdb.bytes());
        let is_allowed = |command: &Command| self.rights().allow(nexus, command.access());
        if !command.as_ref().is_ok_and(is_allowed) {
            return Action::End(Ending::CONFLICT);
        }
        list.check_offered(data.len() as u64)
            .and(command)
            .and_then(|command| command.resume(self, nexus, &data[..len]))
            .into()
    }
}

#[cfg(test)]
mod read_only_port_tests;
#[cfg(test)]
mod tests;
