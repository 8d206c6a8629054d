//! The end of an attachment: the volume goes on being served until nobody has it any more, whoever they are and
//! wherever they are: on another path, in another mount namespace, by an open file, a loop device, a frozen file
//! system, or over the network. To take it away before would be to pull the disk out of a running database.
//!
//! Only the kernel knows everybody who has a file. It ends the connection to its server when there is nobody left, so
//! that, and no list of users, ends the wait. Users are looked for in order to name them.

use std::pin::pin;

use engine::{
    Duration, Instant, blocking,
    mounts::Mount,
    task::{self, Either},
    time,
};
use front::{Ended, Front, LocalFile};
use front_fuse::Unmounted;

use super::{file_system::FileSystem, holders::holders_of};

/// The pause between two attempts to unmount, and between two looks at the clients.
const PAUSE: Duration = Duration::from_millis(100);
/// The same once it lasts: for users who are not root, each attempt is a program that is run.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// Users are named only after this time: most need less to go.
const GRACE: Duration = Duration::from_secs(2);
/// The pause between two looks at who they are.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Those who stay are named again after this time.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Finding out who they are takes no longer.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What keeps the volume from being released.
#[derive(Clone)]
enum VolumeHolder {
    /// Those who use the mounted file system; why it cannot be unmounted.
    FileSystem(Mount, String),
    /// Those who have the file; why it cannot be unmounted, if it is still on its path.
    File(Mount, Option<String>),
    /// These clients.
    Clients(Vec<String>),
    /// The volume: what is unmounted is written back first.
    Volume,
}

/// Takes the volume from its place as soon as nobody has it any more: first its file system, if one is mounted.
///
/// # Errors
/// The connection to the kernel is gone. Nobody can be served any more.
pub(super) async fn release(
    front: &dyn Front,
    file_system: Option<&FileSystem>,
) -> Result<(), Ended> {
    let began = time::now();
    let mut reminder = Reminder::new(began);
    loop {
        match task::either(front.ended(), look(front, file_system, &mut reminder)).await {
            Either::One(Ended::Released) | Either::Other(None) => return Ok(()),
            Either::One(lost) => return Err(lost),
            Either::Other(Some(held)) => reminder.remind(&held).await,
        }
        let pause = match time::now() - began < GRACE {
            true => PAUSE,
            false => LONG_PAUSE,
        };
        if let Either::One(ended) = task::either(front.ended(), time::sleep(pause)).await {
            return match ended {
                Ended::Released => Ok(()),
                lost => Err(lost),
            };
        }
    }
}

/// Takes away what can be taken away. Returns who has the volume still.
async fn look(
    front: &dyn Front,
    file_system: Option<&FileSystem>,
    reminder: &mut Reminder,
) -> Option<VolumeHolder> {
    let Some(file) = front.file() else {
        let clients = front.clients();
        return (!clients.is_empty()).then_some(VolumeHolder::Clients(clients));
    };
    let mut unmounting = pin!(unmount(file, file_system));
    loop {
        match task::either(unmounting.as_mut(), time::sleep(PAUSE)).await {
            Either::One(held) => return Some(held),
            Either::Other(()) => reminder.remind(&VolumeHolder::Volume).await,
        }
    }
}

/// Unmounts the file system, then the file. Returns what keeps one of them, or else the file's users elsewhere: it may be
/// mounted in another mount namespace, or lazily unmounted and open.
async fn unmount(file: &dyn LocalFile, file_system: Option<&FileSystem>) -> VolumeHolder {
    if let Some(file_system) = file_system {
        if let Unmounted::No(why) = file_system.unmount().await {
            return VolumeHolder::FileSystem(file_system.mount().clone(), why);
        }
    }
    let why = file.unmount().await.err();
    VolumeHolder::File(file.mount().clone(), why)
}

impl VolumeHolder {
    /// Describes them for people.
    async fn who(&self) -> String {
        let (mount, why) = match self {
            VolumeHolder::Clients(clients) => return clients.join(", "),
            VolumeHolder::Volume => return String::new(),
            VolumeHolder::FileSystem(mount, why) => (mount.clone(), Some(why)),
            VolumeHolder::File(mount, why) => (mount.clone(), why.as_ref()),
        };
        let looking = move || holders_of(&mount);
        let found = blocking::run_within(LOOK_LIMIT, blocking::WorkKind::Looks, looking).await;
        let found = found.unwrap_or_else(|error| format!("somebody ({error})"));
        match why {
            Some(why) => format!("{found} ({why})"),
            None => found,
        }
    }

    fn tell(&self, who: &str) {
        const SECOND: &str = "A second SIGTERM or SIGINT ends at once, and unsynced data is lost";
        match self {
            VolumeHolder::FileSystem(mount, _) => tracing::warn!(
                directory = %mount.point.display(),
                "it is in use by {who}; it is unmounted as soon as it is free. {SECOND}"
            ),
            VolumeHolder::File(mount, _) => tracing::warn!(
                path = %mount.point.display(),
                "the file is in use by {who}; it is served until nobody has it any more. {SECOND}"
            ),
            VolumeHolder::Clients(clients) => tracing::warn!(
                clients = clients.len(),
                "the volume is in use by {who}; it is served until no client is connected any more. {SECOND}"
            ),
            VolumeHolder::Volume => tracing::warn!(
                "what was not written back yet is being written to the volume, which takes its time. {SECOND}"
            ),
        }
    }
}

/// When to say who is waited for: after a while, then whenever it is somebody else, and again now and then.
struct Reminder {
    next_look: Instant,
    /// What was said last, and when.
    told: Option<(Instant, String)>,
}

impl Reminder {
    fn new(now: Instant) -> Reminder {
        Reminder {
            next_look: now + GRACE,
            told: None,
        }
    }

    /// Says who it is, if it is time to.
    async fn remind(&mut self, held: &VolumeHolder) {
        if self.looks(time::now()) {
            let who = held.who().await;
            if self.tells(time::now(), &who) {
                held.tell(&who);
            }
        }
    }

    /// Whether to find out who it is.
    fn looks(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_look;
        if is_due {
            self.next_look = now + LOOK_EVERY;
        }
        is_due
    }

    /// Whether to say that it is `who`.
    fn tells(&mut self, now: Instant, who: &str) -> bool {
        let is_known = |(at, told): &(Instant, String)| told == who && now - *at < TELL_EVERY;
        if self.told.as_ref().is_some_and(is_known) {
            return false;
        }
        self.told = Some((now, who.to_owned()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it is said who is waited for, in seconds, if that is asked ten times a second.
    fn told(seconds: u64, who: impl Fn(u64) -> String) -> Vec<u64> {
        let at = |tenths: u64| Instant::from_ns(tenths * 100_000_000);
        let mut reminder = Reminder::new(at(0));
        let told = (0..10 * seconds).filter(|&tenths| {
            reminder.looks(at(tenths)) && reminder.tells(at(tenths), &who(tenths / 10))
        });
        told.map(|tenths| tenths / 10).collect()
    }

    #[test]
    fn whoever_stays_is_named_again_and_others_soon_but_no_more_often_than_looked_for() {
        let same = told(200, |_| "a".to_owned());
        assert_eq!(same, [2, 62, 122, 182]);
        let other = told(60, |second| if second < 20 { "a" } else { "b" }.to_owned());
        assert_eq!(other, [2, 22]);
        let changing = told(40, |second| second.to_string());
        assert_eq!(changing, [2, 12, 22, 32]);
        assert_eq!(told(2, |_| "a".to_owned()), [0; 0]);
    }
}
