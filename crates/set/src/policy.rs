//! What a set makes of members that are missing.

/// The rule of a set.
pub trait Policy {
    /// Whether the set can be owned with these members: for each, whether it is there.
    fn stands(&self, is_there: &[bool]) -> bool;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn stands(&self, is_there: &[bool]) -> bool {
        (**self).stands(is_there)
    }
}

/// A set that needs every member: a stripe.
#[derive(Clone, Copy, Debug, Default)]
pub struct All;

impl Policy for All {
    fn stands(&self, is_there: &[bool]) -> bool {
        is_there.iter().all(|&is_there| is_there)
    }
}
