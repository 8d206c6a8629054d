//! Task attributes (SAM-5 8): when a command may begin.
//!
//! SIMPLE commands begin as they come, and nothing is kept for them. An ORDERED one begins when
//! the earlier commands of its session for that logical unit have ended, and while it is at work
//! on the medium it has it for itself, like COMPARE AND WRITE, on all lanes: of commands of other
//! sessions, which no transport puts in an order with it, each is wholly before or after it. A HEAD
//! OF QUEUE command begins at once, also past those that wait. What its session sends after one of
//! either kind waits until it has ended. Who waits holds no more memory than what its initiator may
//! send unasked, so that those it waits for find theirs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use engine::{spawn, sync::Notify};
use iscsi::TaskId;
use scsi::{Action, Asc, Sense, SenseKey};

use crate::{
    command::{self, Offer},
    connection::Connection,
    front::Target,
};

/// When a command may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
}

impl Attribute {
    /// Reads the field of a SCSI Command PDU (RFC 7143 §11.3.1); untagged is SIMPLE.
    ///
    /// # Errors
    /// ACA is for an auto contingent allegiance, which no disk here establishes (NORMACA is zero;
    /// SAM-5 8.7), and the others are reserved.
    pub(crate) fn read(field: u8) -> Result<Attribute, Sense> {
        match field {
            0 | 1 => Ok(Attribute::Simple),
            2 => Ok(Attribute::Ordered),
            3 => Ok(Attribute::HeadOfQueue),
            _ => Err(Sense::new(
                SenseKey::IllegalRequest,
                Asc::INVALID_MESSAGE_ERROR,
            )),
        }
    }
}

/// The commands of a session that hold others back.
#[derive(Debug, Default)]
pub(crate) struct Order {
    barriers: RefCell<Vec<Barrier>>,
    serial: Cell<u64>,
    lifted: Notify,
}

#[derive(Debug)]
struct Barrier {
    serial: u64,
    lun: u32,
    task: TaskId,
    attribute: Attribute,
}

impl Order {
    /// Whether a SIMPLE command may begin without a look at what is before it.
    pub(crate) fn is_free(&self) -> bool {
        self.barriers.borrow().is_empty()
    }

    /// Whether `task` has to have the medium for itself.
    pub(crate) fn is_ordered(&self, task: TaskId) -> bool {
        let barriers = self.barriers.borrow();
        let mut ordered = barriers
            .iter()
            .filter(|b| b.attribute == Attribute::Ordered);
        ordered.any(|barrier| barrier.task == task)
    }

    fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// Waits until nothing that came before `serial` holds commands for `lun` back.
    async fn wait(&self, lun: u32, serial: u64) {
        self.lifted
            .wait_for(|| {
                let barriers = self.barriers.borrow();
                let held = barriers.iter().any(|b| b.lun == lun && b.serial < serial);
                (!held).then_some(())
            })
            .await;
    }

    fn lift(&self, serial: u64) {
        self.barriers.borrow_mut().retain(|b| b.serial != serial);
        self.lifted.notify();
    }
}

/// Begins a command that is not SIMPLE, or that comes after such a one, when its turn has come.
pub(crate) fn begin(
    connection: &Rc<Connection>,
    target: &Rc<Target>,
    offer: Offer,
    action: Action,
    attribute: Attribute,
) {
    let (task, lun) = (offer.task, offer.lun);
    let earlier = connection.open.earlier(lun);
    let serial = connection.order.next_serial();
    if attribute != Attribute::HeadOfQueue && !command::admit(connection, offer, &action) {
        return;
    }
    if attribute != Attribute::Simple {
        connection.order.barriers.borrow_mut().push(Barrier {
            serial,
            lun,
            task,
            attribute,
        });
    }
    if attribute == Attribute::HeadOfQueue {
        command::act(connection, target, offer, action);
        let connection = connection.clone();
        spawn(async move {
            connection.open.wait_gone(&[task]).await;
            connection.order.lift(serial);
        });
        return;
    }
    let (connection, target) = (connection.clone(), target.clone());
    spawn(async move {
        match attribute {
            Attribute::Ordered => connection.open.wait_gone(&earlier).await,
            _ => connection.order.wait(lun, serial).await,
        }
        // Unless it was aborted meanwhile.
        if connection.open.with(task, |_| ()).is_some() {
            command::act(&connection, &target, offer, action);
            connection.transmit.notify();
        }
        if attribute == Attribute::Ordered {
            connection.open.wait_gone(&[task]).await;
            connection.order.lift(serial);
        }
    });
}
