//! The SCSI disk: commands from its own table, with fields and parameter lists from the input,
//! sent by three nexuses over two views of one unit; between them what a transport does besides:
//! resizing, resets, lost nexuses, sanitizes and copies that end. `rules` holds what every answer
//! must keep to, `cdb` makes commands, `list` makes parameter lists.

mod cdb;
mod list;
mod reservation;
mod rules;

use std::sync::Arc;

use scsi::{
    Action, Attention, Copy, CopyError, Discard, DiskShape, Ending, Identity, LogicalUnit, Lun,
    MediumOp, NexusId, Overwrite, ParameterList, SharedUnit, TargetPort, absent,
};

use crate::held::held;
use crate::input::Input;
use cdb::Commands;

/// More steps teach nothing new and cost time.
const STEPS_MAX: usize = 128;
/// Commands that wait for data-out or for the medium at a time.
const WAITING_MAX: usize = 8;
/// The most that the common state may hold, written out.
const HELD_MAX: usize = 4 << 20;
/// Asks what the disk can do and how it stands; sends no other commands.
const OBSERVER: NexusId = NexusId(9);

/// A disk with three initiators played by the input.
pub fn scsi(input: &[u8]) {
    let mut input = Input::new(input);
    let shape = shape(&mut input);
    let mut disk = Disk::new(shape);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        disk.step(&mut input);
    }
    disk.check_state();
    assert!(held(&disk.shared) < HELD_MAX, "{} held", held(&disk.shared));
}

/// A disk of one of many kinds.
fn shape(input: &mut Input<'_>) -> DiskShape {
    let choice = input.u8();
    let bit = |at: u8| choice >> at & 1 != 0;
    let block_size_bytes = if bit(0) { 4096 } else { 512 };
    let len_blocks = match (bit(1), bit(2)) {
        (false, false) => 1 << 21,
        (false, true) => 1 + u64::from(input.u8()),
        (true, false) => (1 << 63) / u64::from(block_size_bytes),
        (true, true) => 1 << 33,
    };
    let discard = Discard {
        granularity_blocks: 8,
        alignment_blocks: 0,
        zeroes_after_discard: !bit(4),
        unmap_blocks_max: 1 << 16,
        unmap_ranges_max: 4,
    };
    DiskShape {
        discard: bit(3).then_some(discard),
        read_only: bit(5),
        removable: bit(6),
        atomic_blocks_max: if bit(7) { 64 } else { 0 },
        ..DiskShape::new(block_size_bytes, len_blocks)
    }
}

fn identity(relative_port: u16) -> Identity {
    Identity {
        vendor: "SANSTONE".into(),
        product: "disk".into(),
        revision: "0.1".into(),
        serial: "0123456789abcdef".into(),
        uuid: *b"sixteen bytes...",
        port: TargetPort {
            target_name: "iqn.2026-11.io.sanstone:t0".into(),
            portal_group_tag: 1,
            relative_port,
            port_group: 1,
        },
    }
}

/// A nexus: its number, the view that it comes through, its initiator port's name.
#[derive(Clone, Copy)]
struct Nexus {
    id: NexusId,
    view: usize,
    name: &'static str,
}

const NEXUSES: [Nexus; 3] = [
    Nexus {
        id: NexusId(1),
        view: 0,
        name: "iqn.2026-11.test:a,i,0x800000000001",
    },
    Nexus {
        id: NexusId(2),
        view: 0,
        name: "iqn.2026-11.test:b,i,0x800000000001",
    },
    Nexus {
        id: NexusId(3),
        view: 1,
        name: "iqn.2026-11.test:c,i,0x800000000001",
    },
];

/// A command whose CDB was taken and that waits for data-out or for the medium.
enum Waiting {
    List(Nexus, Vec<u8>, ParameterList),
    Medium(Nexus, MediumOp),
}

struct Disk {
    views: [LogicalUnit; 2],
    shared: Arc<SharedUnit>,
    commands: Commands,
    waiting: Vec<Waiting>,
    sanitize: Option<Overwrite>,
}

impl Disk {
    fn new(shape: DiskShape) -> Disk {
        let shared = SharedUnit::new();
        let view = |port| {
            let unit = LogicalUnit::sharing(identity(port), shape.clone(), shared.clone());
            unit.expect("a disk can have this shape")
        };
        let mut views = [view(1), view(2)];
        for nexus in NEXUSES {
            views[nexus.view].establish(nexus.id, nexus.name);
        }
        let commands = Commands::of(&mut views[0]);
        Disk {
            views,
            shared,
            commands,
            waiting: Vec::new(),
            sanitize: None,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=9 => self.command(input),
            10 => {
                let cdb = self.commands.make(input, self.views[0].shape());
                let action = absent::begin(self.views[0].identity(), &cdb);
                let wants = matches!(
                    action,
                    Action::End(_) | Action::Reply(_) | Action::ReportLuns(_)
                );
                assert!(wants, "{action:?} of a unit that does not exist");
                rules::check(&action, &cdb, self.views[0].shape());
            }
            11 => {
                let at = usize::from(input.u8());
                if let Some(at) = at.checked_rem(self.waiting.len()) {
                    let waiting = self.waiting.remove(at);
                    self.go_on(input, waiting);
                }
            }
            12 => self.resize(input),
            13 | 14 => self.happen(input),
            _ => self.sanitize_goes_on(input),
        }
    }

    fn command(&mut self, input: &mut Input<'_>) {
        let nexus = *input.pick(&NEXUSES).expect("there are some");
        let cdb = self.commands.make(input, self.views[nexus.view].shape());
        let action = self.views[nexus.view].begin(nexus.id, &cdb);
        rules::check(&action, &cdb, self.views[nexus.view].shape());
        let wanted = action.data_out_len_bytes();
        let offered = match input.u8() {
            0..=0xdf => wanted,
            0xe0..=0xef => u64::from(input.u16()),
            _ => wanted.wrapping_add(u64::from(input.u8())) & 0xffff_ffff,
        };
        match action.check_offered(offered) {
            Ok(()) => {
                let block = u64::from(self.views[0].shape().block_size_bytes);
                assert!(
                    offered >= wanted || offered % block == 0,
                    "half a block is offered"
                );
                self.follow(input, nexus, cdb, action);
            }
            Err(sense) => rules::check_sense(&sense, &cdb),
        }
    }

    /// What a transport does with an action.
    fn follow(&mut self, input: &mut Input<'_>, nexus: Nexus, cdb: Vec<u8>, action: Action) {
        let waiting = match action {
            Action::Parameters(list) => Waiting::List(nexus, cdb, list),
            Action::Medium(op) => {
                self.check_allowed(nexus, &op);
                Waiting::Medium(nexus, op)
            }
            Action::ReportLuns(request) => {
                let luns = [0, 255, 256, 16384, Lun::MAX].map(|n| Lun::new(n).expect("it fits"));
                let reply = request.reply(&luns[..input.below(6)]);
                return rules::check(&reply, &cdb, self.views[nexus.view].shape());
            }
            Action::Copy(copy) => return self.copy(input, nexus, &copy),
            Action::Overwrite(overwrite) => {
                assert!(self.sanitize.is_none(), "two sanitizes at a time");
                self.sanitize = Some(overwrite);
                return;
            }
            Action::Eject(eject) => {
                let ending = eject.flushed(&self.views[nexus.view]);
                return rules::check_ending(&ending, &cdb);
            }
            Action::Change(change) => {
                let view = &self.views[nexus.view];
                let changed = match change.prepare(view) {
                    Ok(prepared) => {
                        let kept = prepared.to_keep();
                        // A write that failed: nothing has changed.
                        if kept.is_some() && input.u8() < 0x40 {
                            return self.check_state();
                        }
                        let changed = prepared.commit(view).expect("nothing came between");
                        if let Some(kept) = kept {
                            assert_eq!(kept, view.shared().save(), "what was kept is what is");
                        }
                        changed
                    }
                    Err(ending) => return rules::check_ending(&ending, &cdb),
                };
                let known = |id: &NexusId| NEXUSES.iter().any(|nexus| nexus.id == *id);
                assert!(
                    changed.abort.iter().all(known),
                    "{changed:?} names strangers"
                );
                return self.check_state();
            }
            Action::End(_) | Action::Reply(_) => return,
        };
        if input.u8() < 0xc0 {
            return self.go_on(input, waiting);
        }
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(waiting);
        }
    }

    fn go_on(&mut self, input: &mut Input<'_>, waiting: Waiting) {
        match waiting {
            Waiting::List(nexus, cdb, list) => {
                let data = list::make(input, &cdb, &list, &mut self.views[nexus.view]);
                let view = &mut self.views[nexus.view];
                let fits = list.check_offered(data.len() as u64).is_ok();
                let action = view.resume(list, &data);
                rules::check(&action, &cdb, view.shape());
                let ends = matches!(action, Action::End(_));
                assert!(fits || ends, "{action:?} of a list that is too short");
                let goes_on = matches!(action, Action::Parameters(_) | Action::Reply(_));
                assert!(!goes_on, "{action:?} after a parameter list");
                // Its data-out has been taken, and data-in is for other commands.
                assert_eq!(
                    (action.data_out_len_bytes(), action.data_in_len_bytes()),
                    (0, 0)
                );
                self.follow(input, nexus, cdb, action);
            }
            Waiting::Medium(nexus, op) => {
                let view = &mut self.views[nexus.view];
                if view.recheck(nexus.id, &op).is_ok() {
                    self.check_allowed(nexus, &op);
                }
            }
        }
    }

    fn copy(&mut self, input: &mut Input<'_>, nexus: Nexus, copy: &Copy) {
        assert!(
            copy.segments.len() <= 16,
            "{} segments",
            copy.segments.len()
        );
        assert!(copy.segments.iter().all(|segment| segment.blocks <= 0xffff));
        let done = input.below(17).min(copy.segments.len());
        let ending = match done < copy.segments.len() {
            true => CopyError::Failed.ending(),
            false => Ending::GOOD,
        };
        copy.ended(&self.views[nexus.view], nexus.id, done, &ending);
    }

    /// The volume was resized: one view is told for all.
    fn resize(&mut self, input: &mut Input<'_>) {
        let (view, len) = (input.below(self.views.len()), u64::from(input.u16()) + 1);
        let old = self.views[view].resize(len);
        assert!(old.expect("any length will do") != Some(len));
    }

    /// Something happens to nexuses.
    fn happen(&mut self, input: &mut Input<'_>) {
        let nexus = *input.pick(&NEXUSES).expect("there are some");
        let view = &mut self.views[nexus.view];
        match input.below(4) {
            0 => {
                self.waiting.retain(|waiting| match waiting {
                    Waiting::List(of, ..) | Waiting::Medium(of, _) => of.id != nexus.id,
                });
                view.forget(nexus.id);
                view.establish(nexus.id, nexus.name);
            }
            1 => drop(view.acknowledged(nexus.id, Attention::PowerOnOrReset)),
            _ => {
                let attentions = [
                    Attention::PowerOnOrReset,
                    Attention::BusDeviceReset,
                    Attention::CommandsCleared,
                    Attention::ReportedLunsChanged,
                ];
                let attention = *input.pick(&attentions).expect("there are some");
                view.post(attention, Some(nexus.id));
            }
        }
    }

    fn sanitize_goes_on(&mut self, input: &mut Input<'_>) {
        let Some(overwrite) = &self.sanitize else {
            return;
        };
        let block = self.views[0].shape().block_size_bytes as usize;
        assert_eq!(overwrite.pattern.len(), block, "one block");
        assert!((1..=31).contains(&overwrite.passes));
        let last = overwrite.block(overwrite.passes - 1);
        assert_eq!(last, overwrite.pattern, "the last pass writes the pattern");
        overwrite.block(0);
        match input.below(3) {
            0 => overwrite.progress(&self.shared, input.u64(), input.u64()),
            well => {
                let ending = overwrite.ended(&self.shared, well == 1);
                rules::check_ending(&ending, &[0; 16]);
                self.sanitize = None;
            }
        }
    }

    /// What outlives a restart comes back as it was.
    fn check_state(&self) {
        let Some(text) = self.shared.save() else {
            return;
        };
        let restored = SharedUnit::new();
        restored.restore(text.parse().expect("it is read as it was saved"));
        assert_eq!(restored.save(), Some(text), "another state after a restart");
    }

    /// Reservations let this nexus do this.
    fn check_allowed(&mut self, nexus: Nexus, op: &MediumOp) {
        let port = nexus.view as u16 + 1;
        let Some(held) = reservation::Held::look(&mut self.views[0]) else {
            return;
        };
        let writes = op.changes();
        assert!(
            held.lets(nexus.name, port, writes),
            "{op:?} of {} against {held:?}",
            nexus.name
        );
    }
}
