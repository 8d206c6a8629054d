//! Values that live on a lane, under numbers that are unique within the process. They stay until
//! somebody takes them; what is left is dropped when the lane ends.

use std::{
    any::Any,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::lane;

/// Stores `value` on the current lane. Returns the number under which to find it there.
///
/// # Panics
/// If no lane is current.
pub fn keep(value: impl Any) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    lane::with(|lane| lane.locals.borrow_mut().insert(number, Box::new(value)));
    number
}

/// A clone of the value with this number and type, if it lives on the current lane.
pub fn get<T: Clone + 'static>(number: u64) -> Option<T> {
    lane::try_with(|lane| lane.locals.borrow().get(&number)?.downcast_ref().cloned())?
}

/// Removes and returns the current lane's value with this number.
pub fn take(number: u64) -> Option<Box<dyn Any>> {
    lane::try_with(|lane| lane.locals.borrow_mut().remove(&number))?
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::sim::World;

    #[test]
    fn a_value_goes_when_it_is_taken_away_or_its_lane_ends() {
        let world = World::new(0);
        let (here, there) = (world.host("here"), world.host("there"));
        let value = Rc::new(());
        world.block_on(&here, async {
            let kept = value.clone();
            let number = there.spawn(async move { keep(kept) }).await;
            assert_eq!(get::<Rc<()>>(number), None, "it lives on another lane");
            let found = there.spawn(async move { get::<Rc<()>>(number).is_some() });
            assert!(found.await);
            there.power_cut();
            assert_eq!(Rc::strong_count(&value), 1);
            let number = keep(value.clone());
            drop(take(number));
            assert_eq!(Rc::strong_count(&value), 1);
        });
    }
}
