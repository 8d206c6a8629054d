//! Locks on extents of a file, where its medium keeps no order itself: exclusive or shared. Exclusive are a
//! write of a part of a unit, which reads, changes and writes all of it and would undo another write in
//! between; and in the page cache every write, because a read must not see half of it.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
};

use engine::sync::Notify;

/// The extents in use on one lane, and the waiters for them in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Extents {
    line: RefCell<Vec<Rc<Claim>>>,
    changed: Notify,
    next: Cell<u64>,
}

#[derive(Debug)]
struct Claim {
    number: u64,
    range: Range<u64>,
    alone: bool,
}

impl Claim {
    fn excludes(&self, other: &Claim) -> bool {
        (self.alone || other.alone)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl Extents {
    /// Waits for all who came before and cannot share `range` (in bytes). First come, first served.
    pub(super) async fn claim(&self, range: Range<u64>, alone: bool) -> Claimed<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let claim = Rc::new(Claim {
            number,
            range,
            alone,
        });
        self.line.borrow_mut().push(claim.clone());
        let claimed = Claimed {
            extents: self,
            claim: claim.clone(),
        };
        self.changed
            .wait_for(|| {
                let line = self.line.borrow();
                let blocked = line
                    .iter()
                    .take_while(|earlier| earlier.number < number)
                    .any(|earlier| earlier.excludes(&claim));
                (!blocked).then_some(())
            })
            .await;
        claimed
    }
}

/// An extent in use, until this is dropped.
#[derive(Debug)]
pub(super) struct Claimed<'a> {
    extents: &'a Extents,
    claim: Rc<Claim>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.extents
            .line
            .borrow_mut()
            .retain(|claim| claim.number != self.claim.number);
        self.extents.changed.notify();
    }
}
