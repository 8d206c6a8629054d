//! Which commands wait for which, and how much work it takes to find out.

use super::*;
use crate::open::{OpenCommand, OpenCommands, WriteParts, command_id};
use engine::{Payload, time::Instant};
use unit::{Permits, StageStamps};

/// Task IDs as a protocol machine assigns them.
fn tasks(count: usize) -> Vec<TaskId> {
    (0..count).map(|slot| TaskId::new(slot as u16, 1)).collect()
}

/// Commands, and the I/Os running for them.
#[derive(Default)]
struct Session {
    commands: OpenCommands,
    at_work: RefCell<Vec<(TaskId, u32)>>,
}

impl std::ops::Deref for Session {
    type Target = OpenCommands;

    fn deref(&self) -> &OpenCommands {
        &self.commands
    }
}

impl Session {
    fn begin_io(&self, task: TaskId, lun: u32) -> TaskId {
        self.at_work.borrow_mut().push((task, lun));
        self.begun(task, lun);
        task
    }

    fn end_io(&self, task: TaskId) {
        let mut at_work = self.at_work.borrow_mut();
        let index = at_work.iter().position(|(of, _)| *of == task);
        at_work.remove(index.expect("it runs"));
        self.ended(task);
    }
}

fn open(commands: &OpenCommands, task: TaskId, lun: u32) {
    commands.insert(task, lun, |mark| OpenCommand {
        task,
        mark,
        lun,
        times: StageStamps::at(Instant::default()),
        asks_stage_times: false,
        admission_ns: 0,
        medium_ns: None,
        kind: None,
        pending: None,
        transfer_len: 0,
        write: WriteParts::new(),
        read: Payload::new(),
        permits: Permits::new(),
        waiter: Default::default(),
    });
}

fn stand_in_line(commands: &Session, task: TaskId, lun: u32, is_ordered: bool) -> Rc<EnableSignal> {
    let at_work = commands.at_work.borrow();
    let at_work = at_work.iter().map(|(task, lun)| (command_id(*task), *lun));
    commands.watch(|| at_work.collect());
    open(commands, task, lun);
    let signal = commands.order.stand_in_line(task, is_ordered);
    signal.expect("it was watched")
}

#[test]
fn an_ordered_command_waits_for_all_before_it_and_later_ones_for_it() {
    let commands = Session::default();
    let [simple, other_lun, ordered, later, second] = tasks(5)[..] else {
        unreachable!()
    };
    open(&commands, simple, 0);
    let io = commands.begin_io(simple, 0);
    open(&commands, other_lun, 1);
    let first = stand_in_line(&commands, ordered, 0, true);
    let waits = stand_in_line(&commands, later, 0, false);
    let last = stand_in_line(&commands, second, 0, true);
    let come = || [&first, &waits, &last].map(|signal| signal.is_given.get());
    assert_eq!(come(), [false; 3]);
    commands.remove(simple); // aborted: its I/O goes on
    assert_eq!(come(), [false; 3]);
    commands.end_io(io);
    assert_eq!(come(), [true, false, false]);
    assert!(commands.order.is_ordered(ordered) && !commands.order.is_ordered(later));
    commands.remove(ordered);
    assert_eq!(come(), [true, true, false]);
    commands.remove(later);
    assert_eq!(come(), [true; 3]);
    assert!(!commands.order.is_free());
    commands.remove(second);
    assert!(commands.order.is_free());
}

#[test]
fn one_that_is_aborted_while_it_waits_holds_nobody_back_when_its_turn_comes() {
    let commands = Session::default();
    let [simple, ordered, later] = tasks(3)[..] else {
        unreachable!()
    };
    open(&commands, simple, 0);
    let aborted = stand_in_line(&commands, ordered, 0, true);
    let waits = stand_in_line(&commands, later, 0, false);
    commands.remove(ordered);
    assert!(!waits.is_given.get(), "what came before it is at work");
    commands.remove(simple);
    assert!(aborted.is_given.get(), "so that its task ends");
    assert!(waits.is_given.get() && commands.order.is_free());
}

#[test]
fn a_command_at_work_on_another_unit_is_waited_for_there() {
    let commands = Session::default();
    let [copy, ordered] = tasks(2)[..] else {
        unreachable!()
    };
    open(&commands, copy, 0);
    let ios = [commands.begin_io(copy, 0), commands.begin_io(copy, 1)];
    let signal = stand_in_line(&commands, ordered, 1, true);
    for io in ios {
        commands.end_io(io);
        assert!(!signal.is_given.get());
    }
    commands.remove(copy);
    assert!(signal.is_given.get());
}

#[test]
fn what_a_command_costs_does_not_grow_with_how_many_wait() {
    for count in [16, 4096] {
        let commands = Session::default();
        let tasks = tasks(2 * count);
        let turns: Vec<_> = tasks
            .iter()
            .enumerate()
            .map(|(index, task)| stand_in_line(&commands, *task, 0, index % 2 == 0))
            .collect();
        let steps = || commands.order.with(|set| set.steps).unwrap_or(0);
        let mut most = 0;
        for (task, signal) in tasks.iter().zip(&turns) {
            assert!(signal.is_given.get(), "in the order in which they came");
            let before = steps();
            commands.remove(*task);
            most = most.max(steps().saturating_sub(before));
        }
        assert!(commands.order.is_free());
        assert!(most <= 3, "{most} looks at the end of one of {count}");
    }
}

#[test]
fn commands_at_the_head_of_the_queue_do_not_set_tracking_up_again_each_time() {
    const OPEN: usize = 100;
    let commands = Session::default();
    let all = tasks(OPEN + 1);
    let (last, first) = all.split_last().expect("there are some");
    first.iter().for_each(|task| open(&commands, *task, 0));
    let setups = Cell::new(0);
    for _ in 0..OPEN {
        commands.watch(|| {
            setups.set(setups.get() + 1);
            Vec::new()
        });
        open(&commands, *last, 0);
        commands.order.hold_back(*last);
        commands.end(*last);
    }
    assert!(
        setups.get() <= 3,
        "{} times for {OPEN} commands",
        setups.get()
    );
    // In the end it stops.
    first.iter().for_each(|task| drop(commands.end(*task)));
    assert!(commands.order.is_free());
}
