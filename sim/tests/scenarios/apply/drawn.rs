//! Configurations as a seed draws them.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, OnceLock},
};

use engine::sim::{Host, Random, World};
use iscsi::{Authentication, Chap, ChapAccount, ChapSecret, InitiatorConfig};
use sim::{
    raw::{Over, RawSession},
    target_machine::TargetMachine,
};

use super::{CONFIG, KEPT, PORT, TEST_UNIT_READY, create_stripe, paths, target};

/// How many targets may come and go.
const TARGETS: usize = 3;
/// The numbers of the volumes whose size changes.
const SIZED: [usize; 2] = [0, 2];
/// The sizes that they may have.
const SIZES_KIB: [u64; 2] = [64, 128];
/// The number of the volume on another machine, whose paths and sessions change.
pub(super) const FAR: usize = 4;
/// The number of the stripe.
pub(super) const STRIPE: usize = 5;
/// The same as a volume's name.
const STRIPE_NAME: &str = "v5";
/// The files that it is made of.
const PARTS: [&str; 2] = ["/srv/s0", "/srv/s1"];
/// The ports of a target that listens in two places.
const PORTS: [u16; 2] = [PORT, PORT + 1];
/// The files of the secrets, with what is in them.
const SECRETS: [(&str, &str); 2] = [
    ("secret0", "sixteen bytes ok"),
    ("secret1", "other sixteen ok"),
];
const USER: &str = "db";

/// The sizes of the volumes that may grow, in KiB.
pub(super) type Sizes = [u64; SIZED.len()];

/// A configuration as it was drawn.
#[derive(Clone, PartialEq)]
pub(super) struct Drawn {
    pub(super) text: String,
    pub(super) targets: BTreeMap<String, DrawnTarget>,
    /// The settings of the volume on another machine.
    pub(super) far: String,
    /// How many commands a session may have in flight.
    pub(super) commands: usize,
    pub(super) sizes: Sizes,
}

/// A target of it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct DrawnTarget {
    /// The volume of each LUN.
    pub(super) luns: BTreeMap<usize, usize>,
    is_allowed: bool,
    /// Initiators are sent to another address.
    pub(super) is_elsewhere: bool,
    pub(super) ports: Vec<u16>,
    /// The number of the secret that it asks for.
    pub(super) secret: Option<usize>,
}

impl DrawnTarget {
    /// Whether the client may use it.
    pub(super) fn may_be_used(&self) -> bool {
        self.is_allowed && !self.is_elsewhere
    }

    /// The same disks for the same initiators at other ports, with another secret, or sent elsewhere.
    fn vary(&self, random: &mut Random) -> DrawnTarget {
        let fresh = DrawnTarget::draw(random, 0);
        match fresh.is_elsewhere {
            true => fresh,
            false => DrawnTarget {
                ports: fresh.ports,
                secret: fresh.secret.filter(|_| !self.is_elsewhere),
                ..self.clone()
            },
        }
    }

    fn draw(random: &mut Random, number: usize) -> DrawnTarget {
        let mut luns = BTreeMap::new();
        for volume in 0..=STRIPE {
            if random.chance(0.35) {
                luns.insert(luns.len() + random.index(2) * 4, volume);
            }
        }
        if luns.is_empty() {
            luns.insert(0, number);
        }
        let is_elsewhere = random.chance(0.1);
        let ports = [&PORTS[..], &PORTS[..1], &PORTS[..1], &PORTS[1..]];
        DrawnTarget {
            luns: if is_elsewhere { BTreeMap::new() } else { luns },
            is_allowed: random.chance(0.8),
            is_elsewhere,
            ports: ports[random.index(ports.len())].to_vec(),
            secret: (!is_elsewhere && random.chance(0.4)).then(|| random.index(SECRETS.len())),
        }
    }

    fn text(&self, name: &str) -> String {
        let luns = self.luns.iter();
        let luns: Vec<_> = luns
            .map(|(lun, volume)| format!("{lun} = \"v{volume}\""))
            .collect();
        let what = match self.is_elsewhere {
            true => "redirect = { to = \"192.0.2.9:3260\" }".to_owned(),
            false => format!("luns = {{ {} }}", luns.join(", ")),
        };
        let allow = match self.is_allowed {
            true => "*",
            false => "iqn.2026-11.io.sanstone:other",
        };
        let mut text = format!("[target.\"{name}\"]\n{what}\nallow = [\"{allow}\"]\n");
        if self.ports != PORTS[..1] {
            let ports = self.ports.iter();
            let portals: Vec<_> = ports.map(|port| format!("\"0.0.0.0:{port}\"")).collect();
            text += &format!("portals = [{}]\n", portals.join(", "));
        }
        if let Some(secret) = self.secret {
            let file = SECRETS[secret].0;
            text += &format!("chap = {{ user = \"{USER}\", secret_file = \"{file}\" }}\n");
        }
        text
    }

    /// Logs in to it, which has this name, and consumes the unit attentions.
    pub(super) async fn login(&self, host: &Host, target: &str, name: &str) -> Rc<RawSession> {
        let session = attempt(host, self.ports[0], target, name, self.secret).await;
        let session = session.expect("it lets us in");
        let ready = session.execute(&TEST_UNIT_READY, &[], 0).await;
        ready.expect("a session");
        session
    }
}

impl Drawn {
    pub(super) fn serves(&self, volume: usize) -> bool {
        let mut luns = self.targets.values().flat_map(|it| it.luns.values());
        luns.any(|it| *it == volume)
    }

    /// Whether this volume is longer here than in `before`, and served in both.
    pub(super) fn has_grown(&self, before: &Drawn, volume: usize) -> bool {
        let index = SIZED.iter().position(|it| *it == volume);
        let is_longer = index.is_some_and(|index| self.sizes[index] > before.sizes[index]);
        is_longer && self.serves(volume) && before.serves(volume)
    }

    /// Whether a volume is longer here than in `before`, and served in both.
    pub(super) fn grows(&self, before: &Drawn) -> bool {
        SIZED.iter().any(|volume| self.has_grown(before, *volume))
    }
}

/// Sizes of which none is smaller than in `least`.
pub(super) fn draw_sizes(random: &mut Random, least: Sizes) -> Sizes {
    least.map(|least| least.max(SIZES_KIB[random.index(SIZES_KIB.len())]))
}

/// Sizes that leave room to grow.
pub(super) fn least_sizes() -> Sizes {
    [SIZES_KIB[0]; SIZED.len()]
}

fn stripe() -> String {
    let file = |number| format!("{{ file = {{ path = \"s{number}\", size = \"1088KiB\" }} }}");
    format!(
        "stripe = {{ unit = \"4KiB\", of = [{}, {}] }}",
        file(0),
        file(1)
    )
}

fn head(lanes: usize) -> String {
    format!("lanes = {lanes}\nmemory = \"32MiB\"\n")
}

fn kept() -> (String, String) {
    let volume = "[volume.kept]\nfile = { path = \"kept\", size = \"64KiB\" }\n".to_owned();
    let target = format!("[target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n");
    (volume, target)
}

/// Puts what the configurations need on `server`: the secrets, and the stripe.
pub(super) fn prepare(server: &Host) {
    for (file, secret) in SECRETS {
        server.put_file(format!("/srv/{file}"), format!("{secret}\n").as_bytes());
    }
    for (path, image) in PARTS.iter().zip(images()) {
        server.put_file(path, image);
    }
}

/// The files of a new stripe, made once.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let world = World::new(0);
        let maker = world.host("maker");
        let (volume, target) = kept();
        let stripe = format!("[volume.{STRIPE_NAME}]\n{}\n", stripe());
        let text = head(1) + &volume + &stripe + &target;
        maker.put_file(CONFIG, text.as_bytes());
        world.block_on(&maker, create_stripe(&maker, STRIPE_NAME));
        let image = |path| maker.read_file(path).expect("it was made");
        PARTS.map(image).to_vec()
    })
}

/// Draws a configuration in which the volumes that may grow have these sizes, and some targets may only be varied from
/// those in `like`.
pub(super) fn draw(
    random: &mut Random,
    lanes: usize,
    storage: &TargetMachine,
    sizes: Sizes,
    like: Option<&Drawn>,
) -> Drawn {
    // Few enough that a lane has memory for the first bursts of as many, whoever else is there.
    let commands = [4, 8][random.index(2)];
    let (paths, sessions) = paths::draw(random, &paths::portals(storage));
    let far = paths::remote(storage, &paths, sessions);
    let [file, cached] = sizes;
    let kinds = [
        format!("file = {{ path = \"v0\", size = \"{file}KiB\" }}"),
        "ram = { size = \"64KiB\" }".to_owned(),
        format!(
            "cache = {{ size = \"1MiB\", of = {{ file = {{ path = \"v2\", size = \"{cached}KiB\" }} }} }}"
        ),
        "stats = { of = { ram = { size = \"64KiB\" } } }".to_owned(),
        far.clone(),
        stripe(),
    ];
    let (kept_volume, mut tables) = kept();
    let mut text = head(lanes) + &format!("[limits]\ncommands = {commands}\n") + &kept_volume;
    let mut targets = BTreeMap::new();
    for number in 0..TARGETS {
        if random.chance(0.4) {
            continue;
        }
        let name = target(number);
        let was = like.and_then(|like| like.targets.get(&name));
        let drawn = match was.filter(|_| random.chance(0.5)) {
            Some(was) => was.vary(random),
            None => DrawnTarget::draw(random, number),
        };
        tables += &drawn.text(&name);
        targets.insert(name, drawn);
    }
    let mut drawn = Drawn {
        text: String::new(),
        targets,
        far,
        commands,
        sizes,
    };
    for (volume, kind) in kinds.iter().enumerate() {
        if drawn.serves(volume) || random.chance(0.3) {
            text += &format!("[volume.v{volume}]\n{kind}\n");
        }
    }
    drawn.text = text + &tables;
    drawn
}

/// Logs in to a target at this port, as the initiator called `name` who knows this secret.
async fn attempt(
    host: &Host,
    port: u16,
    target: &str,
    name: &str,
    secret: Option<usize>,
) -> Result<Rc<RawSession>, Over> {
    let name = format!("iqn.2026-11.io.sanstone:{name}");
    let mut config = InitiatorConfig::new(name, Some(target.to_owned()));
    config.authentication = secret.map(|number| {
        let secret = ChapSecret::new(SECRETS[number].1.as_bytes());
        let account = ChapAccount::new(USER, secret.expect("it is long enough"));
        let chap = Chap::new(account.expect("a name"), None).expect("one direction");
        Authentication::new(Arc::new(chap), [7; Authentication::RANDOM_LEN])
    });
    RawSession::login(host.addr(port), config).await
}

/// Which logins to the target succeed: what its description does not tell of its ports and secrets.
pub(super) async fn logins(host: &Host, target: &str) -> [bool; 3] {
    let tries = [(PORTS[0], None), (PORTS[0], Some(0)), (PORTS[1], Some(0))];
    let mut all = [false; 3];
    for (is_let_in, (port, secret)) in all.iter_mut().zip(tries) {
        let session = attempt(host, port, target, "observer", secret).await;
        *is_let_in = session.is_ok();
        if let Ok(session) = session {
            session.end();
        }
    }
    all
}
