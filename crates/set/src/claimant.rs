//! What the label on a member means for who wants to have it.

use uuid::Uuid;

use crate::label::{FoundLabel, Label};

/// Stands for the owner of a member whose label is damaged.
pub const A_DAMAGED: &str = "an unknown owner (damaged claim)";

/// What to do about the claim of an owner that may be alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Others {
    /// Refuse, and report who it is.
    #[default]
    Refuse,
    /// Take over if the member can fence the other owner off.
    Fence,
    /// Take over in any case, and accept older copies: the user is certain.
    Overrule,
}

/// What the block in the label's place means for a claimant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabelStanding {
    /// No owner.
    Free,
    /// Its owner is certainly dead.
    Dead(Label),
    /// Its owner may be alive; who it is.
    Alive(String),
    /// The same, and its process runs on this machine.
    Running(String),
    /// This process has claimed it elsewhere, or it is the same disk as another member of this set.
    Ours,
    /// Data that is no label.
    Data,
}

/// Who wants to have a member.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// The owner's identity.
    pub owner: Uuid,
    /// The boot of its machine; nil if unknown.
    pub boot: Uuid,
    /// The nonces of its claims that stand.
    pub standing: &'a [u128],
    /// Whether data in the label's place may be overwritten.
    pub may_overwrite: bool,
}

impl Claimant<'_> {
    /// What a member with `found` in the label's place is to it. `is_locked`: the member is a file that no other
    /// process on this machine can have open. `runs` says whether the process in the name of an owner of this boot
    /// runs.
    pub fn standing(
        &self,
        found: FoundLabel,
        is_locked: bool,
        runs: impl Fn(&str) -> bool,
    ) -> LabelStanding {
        let label = match found {
            FoundLabel::Nothing => return LabelStanding::Free,
            FoundLabel::Data | FoundLabel::Damaged if self.may_overwrite => {
                return LabelStanding::Free;
            }
            FoundLabel::Data => return LabelStanding::Data,
            FoundLabel::Damaged => return LabelStanding::Alive(A_DAMAGED.to_owned()),
            FoundLabel::Unreadable(what) => return LabelStanding::Alive(what),
            FoundLabel::Label(label) if label.is_released() => return LabelStanding::Free,
            FoundLabel::Label(label) => label,
        };
        if self.standing.contains(&label.nonce) {
            return LabelStanding::Ours;
        }
        let is_here = label.boot == self.boot && !self.boot.is_nil();
        if label.owner == self.owner || is_locked && is_here {
            return LabelStanding::Dead(label);
        }
        match is_here && runs(&label.name) {
            true => LabelStanding::Running(label.describe()),
            false => LabelStanding::Alive(label.describe()),
        }
    }
}

/// Whether `found` is the label of the claim with this nonce; if not, whose it is.
///
/// # Errors
/// The other owner.
pub fn is_claimed_by(nonce: u128, found: FoundLabel) -> Result<(), String> {
    match found {
        FoundLabel::Label(label) if !label.is_released() && label.nonce == nonce => Ok(()),
        FoundLabel::Label(label) if !label.is_released() => Err(label.describe()),
        FoundLabel::Nothing | FoundLabel::Label(_) => {
            Err("another owner, which has since released it".to_owned())
        }
        FoundLabel::Unreadable(what) => Err(what),
        FoundLabel::Damaged => Err(A_DAMAGED.to_owned()),
        FoundLabel::Data => Err("an unknown owner that overwrote the claim".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::{Generation, LABEL_BYTES};

    fn label(owner: u128, boot: u128) -> Label {
        Label {
            nonce: 5,
            owner: Uuid::from_u128(owner),
            boot: Uuid::from_u128(boot),
            since_unix_s: 0,
            name: "somebody".into(),
            generation: Generation::default(),
        }
    }

    fn claimant(standing: &[u128]) -> Claimant<'_> {
        Claimant {
            owner: Uuid::from_u128(1),
            boot: Uuid::from_u128(10),
            standing,
            may_overwrite: false,
        }
    }

    #[test]
    fn an_owner_is_dead_only_where_that_is_certain() {
        let seen = |owner, boot, is_locked, runs| {
            let found = FoundLabel::Label(label(owner, boot));
            claimant(&[]).standing(found, is_locked, |_| runs)
        };
        assert!(matches!(seen(1, 11, false, false), LabelStanding::Dead(_)));
        assert!(matches!(seen(2, 10, true, true), LabelStanding::Dead(_)));
        assert!(matches!(seen(2, 11, true, false), LabelStanding::Alive(_)));
        assert!(matches!(seen(2, 10, false, false), LabelStanding::Alive(_)));
        assert!(matches!(
            seen(2, 10, false, true),
            LabelStanding::Running(_)
        ));
        assert!(matches!(seen(2, 11, false, true), LabelStanding::Alive(_)));
        let ours = claimant(&[5]).standing(FoundLabel::Label(label(1, 10)), true, |_| true);
        assert_eq!(ours, LabelStanding::Ours);
    }

    #[test]
    fn a_released_member_is_free_whoever_asks() {
        let found = FoundLabel::Label(Label::released(Generation::default()));
        let standing = claimant(&[0]).standing(found.clone(), false, |_| true);
        assert_eq!(standing, LabelStanding::Free);
        let by = is_claimed_by(0, FoundLabel::Nothing).expect_err("nobody claimed it");
        assert!(by.contains("released"), "{by}");
        assert_eq!(is_claimed_by(7, found), Err(by));
    }

    #[test]
    fn a_label_of_a_later_release_is_not_overwritten() {
        let claimant = Claimant {
            may_overwrite: true,
            ..claimant(&[])
        };
        let standing = |block: &[u8]| claimant.standing(Label::decode(block), true, |_| false);
        let mut block = label(2, 11).encode();
        assert_eq!(standing(&[7; LABEL_BYTES]), LabelStanding::Free);
        block[100] ^= 1;
        assert_eq!(standing(&block), LabelStanding::Free, "damaged");
        block[16] = 3;
        let standing = standing(&block);
        let is_alive =
            matches!(&standing, LabelStanding::Alive(what) if what.contains("version 3"));
        assert!(is_alive, "{standing:?}");
    }
}
