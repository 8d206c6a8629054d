//! In the steady state an I/O allocates nothing in either machine: tables and queues have grown to the size the
//! session needs, and are reused.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use iscsi::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a plain cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps to GlobalAlloc's contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn data_of(transmit: &Transmit) -> RxData<'_> {
    match &transmit.data {
        TransmitData::None => RxData::Length(0),
        TransmitData::Inline(bytes) => RxData::Inline(bytes),
        TransmitData::Task { len, .. } => RxData::Length(*len),
    }
}

/// Carries PDUs in both directions until nothing moves; answers logins and executes commands immediately.
fn run(initiator: &mut InitiatorConnection, target: &mut TargetConnection) -> usize {
    let mut done = 0;
    loop {
        let mut moved = false;
        while let Some(transmit) = initiator.poll_transmit() {
            moved = true;
            target.receive(0, &transmit.header, &[], data_of(&transmit));
            while let Some(event) = target.poll_event() {
                answer(target, event);
            }
        }
        while let Some(transmit) = target.poll_transmit() {
            moved = true;
            initiator.receive(0, &transmit.header, &[], data_of(&transmit));
            while let Some(event) = initiator.poll_event() {
                done += usize::from(matches!(event, InitiatorEvent::Done { .. }));
            }
        }
        if !moved {
            return done;
        }
    }
}

fn answer(target: &mut TargetConnection, event: TargetEvent) {
    let good = |len: u32| Outcome {
        status: 0,
        sense: &[],
        transfer_len: u64::from(len),
    };
    match event {
        TargetEvent::LoginRequest(_) => target.login_continue(1).unwrap(),
        TargetEvent::SessionRequest(_) => target.login_accept(1).unwrap(),
        TargetEvent::Command(request) => match request.direction {
            Direction::Write => target.solicit(request.task, request.write_len).unwrap(),
            _ => {
                let len = request.read_len;
                target.data_in(request.task, len, Some(good(len))).unwrap();
            }
        },
        TargetEvent::DataComplete { task } => target.respond(task, good(1 << 20)).unwrap(),
        _ => {}
    }
}

#[test]
fn reads_and_writes_allocate_nothing_in_the_steady_state() {
    let config = InitiatorConfig::new("iqn.2026-11.io.sanstone:i", Some("iqn.t".to_owned()));
    let mut initiator = InitiatorConnection::new(config);
    let mut target = TargetConnection::new(TargetConfig::default());
    run(&mut initiator, &mut target);
    let mut round = |count: usize| {
        let mut done = 0;
        for _ in 0..count {
            for (direction, data_len) in [
                (Direction::Read, 4096),
                (Direction::Write, 4096),
                (Direction::Write, 1 << 20),
            ] {
                for _ in 0..8 {
                    let cdb = &[0; 16];
                    let command = OutgoingCommand {
                        lun: LunField(0),
                        cdb,
                        attribute: 1,
                        direction,
                        data_len,
                        asks_stage_times: false,
                    };
                    initiator.submit(command).unwrap();
                }
                done += run(&mut initiator, &mut target);
            }
        }
        assert_eq!(done, count * 24);
    };
    round(20);
    let before = ALLOCATIONS.with(Cell::get);
    round(100);
    assert_eq!(
        ALLOCATIONS.with(Cell::get) - before,
        0,
        "allocations for 2400 I/Os"
    );
}
