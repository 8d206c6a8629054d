//! Detects stripes that split small I/Os. Each part becomes a command of its own, which helps if a share
//! would otherwise be idle, but is only extra work if all shares are busy.

use volume::{config::Size, graph::NodeView, stripe::UnitBytes};

use super::Block;
use crate::load::Order;

/// I/Os larger than this are meant to use several shares.
const SMALL_BYTES_MAX: u64 = 512 << 10;
/// Advise only if more than this fraction of the I/Os is split.
const MANY: f64 = 0.5;
/// Recreating the stripe is worth it only if the new unit leaves at most this fraction of the splits.
const FEWER: f64 = 0.3;
/// The largest unit that is advised.
const UNIT_BYTES_MAX: u64 = 4 << 20;

/// The stripe under a volume, looking through layers with a single child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StripeBelow {
    path: String,
    unit_bytes: u64,
    shares: usize,
}

impl StripeBelow {
    pub(super) fn of(view: &NodeView) -> Option<StripeBelow> {
        match (view.facts.get(), &view.children[..]) {
            (Some(&UnitBytes(unit_bytes)), children) => Some(StripeBelow {
                path: view.path.clone(),
                unit_bytes: unit_bytes.into(),
                shares: children.len(),
            }),
            (None, [child]) => StripeBelow::of(child),
            (None, _) => None,
        }
    }

    /// What another unit would gain for I/Os of `block`, if `outstanding` is the largest number that still
    /// helps.
    pub(super) fn advice(&self, block: &Block, order: Order, outstanding: usize) -> Option<String> {
        let goes_on = !matches!(order, Order::Random | Order::Zipf);
        // With fewer outstanding, a share would be idle.
        let has_idle_shares = outstanding < 2 * self.shares;
        if goes_on || has_idle_shares || self.shares < 2 || block.bytes_max() > SMALL_BYTES_MAX {
            return None;
        }
        let part = |unit_bytes: u64| block.mean(|block_bytes| split(block_bytes, unit_bytes));
        let now = part(self.unit_bytes);
        let longer = |power: u32| self.unit_bytes << power;
        let units = (1..=10).map(longer).filter(|unit| *unit <= UNIT_BYTES_MAX);
        let unit_bytes = units.into_iter().find(|unit| part(*unit) <= FEWER * now)?;
        let then = part(unit_bytes);
        let unit = Size::from_bytes(self.unit_bytes);
        (now > MANY).then(|| {
            format!(
                "a unit of {unit} splits {:.0} % of the I/Os of {block} over two shares or more, and \
                 {outstanding} outstanding keep all {} busy without that: recreate {} with unit = \
                 \"{}\", which splits {:.0} % (calculated, not measured)",
                100.0 * now,
                self.shares,
                self.path,
                Size::from_bytes(unit_bytes),
                100.0 * then,
            )
        })
    }
}

/// The fraction of I/Os of this length, at multiples of it, that span more than one unit.
fn split(block_bytes: u64, unit_bytes: u64) -> f64 {
    // After this many I/Os the positions within a unit repeat.
    let count = unit_bytes.min(1 << 16);
    let is_split = |io: &u64| {
        let at = io * block_bytes;
        at / unit_bytes != (at + block_bytes - 1) / unit_bytes
    };
    (0..count).filter(is_split).count() as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe(unit_bytes: u64) -> StripeBelow {
        StripeBelow {
            path: "db/stripe".into(),
            unit_bytes,
            shares: 2,
        }
    }

    fn advice(unit_bytes: u64, block_bytes: u64, outstanding: usize) -> Option<String> {
        let block = Size::from_bytes(block_bytes).into();
        stripe(unit_bytes).advice(&block, Order::Random, outstanding)
    }

    #[test]
    fn a_unit_that_splits_small_ios_is_told_with_a_better_one() {
        let told = advice(64 << 10, 96 << 10, 32).expect("every one is split");
        assert!(
            told.starts_with("a unit of 64KiB splits 100 % of the I/Os of 96KiB"),
            "{told}"
        );
        assert!(
            told.contains("unit = \"256KiB\", which splits 25 %"),
            "{told}"
        );
    }

    #[test]
    fn a_unit_that_fits_shares_that_would_be_idle_and_scans_give_no_advice() {
        assert_eq!(advice(64 << 10, 16 << 10, 32), None);
        assert_eq!(advice(64 << 10, 64 << 10, 32), None);
        assert_eq!(advice(64 << 10, 96 << 10, 3), None);
        assert_eq!(advice(64 << 10, 1 << 20, 32), None);
        let block = Size::from_bytes(96 << 10).into();
        let scan = stripe(64 << 10).advice(&block, Order::Sequential, 32);
        assert_eq!(scan, None);
    }
}
