//! The forms: each request in the form that makes the machine work most.

use std::net::SocketAddr;

use engine::share::charge;
use iscsi::pdu::RequestPdu;

use crate::{
    MEASURE, Meter, PLANTED, PLANTED_CHARGED,
    forms::{self, Form},
    machine::{CROWDED, SCRATCH, SLOW, config, list, name, reserve_out, transport_id},
    mirror::Mirror,
    wire::{ATTRIBUTES, Wire},
};

/// How often a form is sent.
const TIMES: usize = 4;
/// Entries that the planted loop visits: what takes some 50 µs.
const PLANTED_ENTRIES: usize = 4096;

/// Measures all of them.
pub(crate) async fn all(meter: &mut Meter<'_>) {
    let mut wire = meter.machine.session().await;
    // The second counts: much is set up at the first.
    for _ in 0..2 {
        let measured = async {
            for _ in 0..TIMES {
                wire.command((SCRATCH, 1), &[0; 6], (&[], 0)).await;
            }
        };
        meter.measure(MEASURE, measured).await;
    }
    planted(meter).await;
    every_command(meter, &mut wire).await;
    reservations(meter, &mut wire).await;
    attributes(meter, &mut wire).await;
    functions(meter, &mut wire).await;
    texts(meter).await;
    pdus(meter).await;
    logins(meter).await;
    nbd(meter).await;
    daemon(meter).await;
    resets(meter).await;
}

/// A loop over what others have left, without a charge and with one.
async fn planted(meter: &mut Meter<'_>) {
    for (name, charged) in [(PLANTED, 0), (PLANTED_CHARGED, 128)] {
        let machine = meter.machine;
        let work = machine.run(async move |_| {
            let entries: Vec<String> = vec![String::new(); PLANTED_ENTRIES];
            charge(charged * entries.iter().filter(|entry| entry.is_empty()).count());
        });
        meter.measure(name, work).await;
    }
}

/// What the disk reports as supported, and its name.
async fn commands(wire: &mut Wire) -> (Vec<(u8, Option<u8>)>, [u8; 16]) {
    let cdb = [0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
    let (_, list) = wire.command((CROWDED, 1), &cdb, (&[], 16384)).await;
    let rows = list[4..].chunks_exact(8).map(|row| {
        let service_action = (row[5] & 1 != 0).then_some(row[3]);
        (row[0], service_action)
    });
    let cdb = [0x12, 1, 0x83, 0, 255, 0];
    let (_, page) = wire.command((CROWDED, 1), &cdb, (&[], 255)).await;
    let at = page.windows(4).position(|head| head == [0x01, 0x03, 0, 16]);
    let at = at.expect("a designator of 16 bytes") + 4;
    let naa = page[at..at + 16].try_into().expect("16 bytes");
    (rows.collect(), naa)
}

async fn every_command(meter: &mut Meter<'_>, wire: &mut Wire) {
    let (commands, naa) = commands(wire).await;
    assert!(commands.len() > 60, "{commands:x?}");
    for (operation, action) in commands {
        let name = format!("command {operation:02x}h/{:02x}h", action.unwrap_or(0));
        // These end registrations or open commands, or occupy the disk.
        let lun = if matches!(operation, 0x48 | 0x1B) {
            SCRATCH
        } else {
            CROWDED
        };
        let forms = forms::longest(operation, action.unwrap_or(0), &naa);
        let forms = forms.unwrap_or_else(|| {
            panic!("{name} is a command that `forms` does not know: write its longest form there")
        });
        if operation == 0x5F {
            continue; // see `reservations`
        }
        for (n, form) in forms.iter().enumerate() {
            for before in &form.before {
                send(wire, lun, before).await;
            }
            let measured = async {
                for _ in 0..times(form) {
                    send(wire, lun, form).await;
                }
            };
            meter.measure(&format!("{name} ({n})"), measured).await;
        }
    }
}

/// What moves much is measured by one.
fn times(form: &Form) -> usize {
    let moved = form.data.len().max(form.read_bytes as usize);
    match moved.max(form.moved_bytes as usize) >= 1 << 20 {
        true => 1,
        false => TIMES,
    }
}

async fn send(wire: &mut Wire, lun: u8, form: &Form) {
    wire.command((lun, 1), &form.cdb, (&form.data, form.read_bytes))
        .await;
}

/// PERSISTENT RESERVE IN with room for everything, and each service action of PERSISTENT RESERVE OUT, refused and
/// carried out.
async fn reservations(meter: &mut Meter<'_>, wire: &mut Wire) {
    for action in 0..4 {
        let cdb = [0x5E, action, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0];
        let read = async {
            wire.command((CROWDED, 1), &cdb, (&[], 0xFFFF)).await;
        };
        meter.measure(&format!("reserve in {action}"), read).await;
    }
    let short: Vec<String> = (0..330).map(|n| format!("m{n:03},i,0x0")).collect();
    let long: Vec<String> = (0..33)
        .map(|n| format!("{},i,0x00000000000{}", name(&n.to_string()), n % 10))
        .collect();
    let refused = [
        ("short names", 0, list(0, 7, 8, &short)),
        ("short names at all ports", 0, list(0, 7, 8 | 4, &short)),
        ("long names", 0, list(0, 7, 8, &long)),
        ("long names at all ports", 0, list(0, 7, 8 | 4, &long)),
        ("a wrong key", 1, list(9, 0, 0, &[])),
    ];
    for (what, action, list) in &refused {
        // The session is not registered, as its names demand.
        reserve_out(wire, 6, 0, &crate::machine::list(0, 0, 0, &[])).await;
        let out = async {
            reserve_out(wire, *action, 7, list).await;
        };
        meter
            .measure(&format!("reserve out {action}, {what}"), out)
            .await;
    }
    for action in 0..=7 {
        for aptpl in [1] {
            meter.machine.crowd(wire).await;
            let list = match action {
                // Another key, or the same reservation; the last for everybody else.
                0 | 6 => list(7, 8, aptpl, &[]),
                4 | 5 => list(7, 0, 0, &[]),
                7 => {
                    let id = transport_id("n0001,i,0x1");
                    let mut list = [7_u64.to_be_bytes(), 9_u64.to_be_bytes()].concat();
                    list.extend([0, aptpl, 0, 1]);
                    list.extend((id.len() as u32).to_be_bytes());
                    list.extend(id);
                    list
                }
                _ => list(7, 0, 0, &[]),
            };
            let out = async {
                reserve_out(wire, action, 7, &list).await;
            };
            meter
                .measure(&format!("reserve out {action}, APTPL {aptpl}"), out)
                .await;
        }
    }
    meter.machine.crowd(wire).await;
}

/// Commands with each task attribute, beside those that are open.
async fn attributes(meter: &mut Meter<'_>, wire: &mut Wire) {
    for attribute in ATTRIBUTES {
        for (lun, cdb) in [
            (SCRATCH, [0; 6]),
            (SCRATCH, [0x08, 0, 0, 0, 1, 0]),
            (SLOW, [0; 6]),
        ] {
            // Behind what is open at that LUN, it would wait.
            if (lun, attribute) == (SLOW, 2) {
                continue;
            }
            let sent = async {
                for _ in 0..TIMES {
                    let len = if cdb[0] == 0 { 0 } else { 512 };
                    wire.command((lun, attribute), &cdb, (&[], len)).await;
                }
            };
            let name = format!("attribute {attribute}, LUN {lun}, {:02x}h", cdb[0]);
            meter.measure(&name, sent).await;
        }
    }
}

/// The task management functions: ABORT TASK to TARGET COLD RESET, and TASK REASSIGN.
const FUNCTIONS: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Those that concern all LUNs.
const RESETS: [u8; 2] = [6, 7];

/// Every task management function, with commands open at other LUNs.
async fn functions(meter: &mut Meter<'_>, wire: &mut Wire) {
    const NOT_SUPPORTED: u8 = 5;
    for function in (1..0x80).filter(|function| !FUNCTIONS.contains(function)) {
        assert_eq!(
            wire.function(function, SCRATCH, 1).await,
            NOT_SUPPORTED,
            "function {function} is carried out: write its longest form here"
        );
    }
    for function in FUNCTIONS
        .into_iter()
        .filter(|function| !RESETS.contains(function))
    {
        let sent = async {
            for _ in 0..TIMES {
                wire.function(function, SCRATCH, 1).await;
            }
        };
        meter.measure(&format!("function {function}"), sent).await;
    }
}

/// The resets of all LUNs. The open commands end with them, and a throttled one takes its time.
async fn resets(meter: &mut Meter<'_>) {
    for function in RESETS {
        let mut other = Wire::login(meter.machine.portal(), &name("resets"), false, &[]).await;
        meter
            .measure(&format!("function {function}"), async {
                other.function(function, 0, 0).await;
            })
            .await;
    }
}

/// Texts of a session and of a discovery, with all keys there are.
async fn texts(meter: &mut Meter<'_>) {
    let portal = meter.machine.portal();
    let mut session = Wire::login(portal, &name("texts"), false, &[]).await;
    let mut discovery = Wire::login(portal, &name("discovers"), true, &[]).await;
    let pairs = |pair: &str| pair.repeat((16 << 10) / pair.len()).into_bytes();
    let mut texts = vec![
        ("unknown keys".to_owned(), pairs("a=\0")),
        ("SendTargets=All".to_owned(), b"SendTargets=All\0".to_vec()),
        ("SendTargets=".to_owned(), b"SendTargets=\0".to_vec()),
        ("SendTargets= often".to_owned(), pairs("SendTargets=\0")),
        (
            "SendTargets of one".to_owned(),
            format!("SendTargets={}\0", name("customer9")).into_bytes(),
        ),
    ];
    for key in keys() {
        texts.push((key.to_owned(), pairs(&format!("{key}=1\0"))));
    }
    for (what, text) in &texts {
        for (kind, wire) in [("session", &mut session), ("discovery", &mut discovery)] {
            let mut is_over = false;
            let sent = async {
                is_over = !wire.text(text).await;
            };
            meter
                .measure(&format!("text of a {kind}: {what}"), sent)
                .await;
            if is_over {
                *wire = Wire::login(portal, &name(kind), kind == "discovery", &[]).await;
            }
        }
    }
    meter.measure("NOP-Out", session.ping(&[0; 8 << 10])).await;
    meter.measure("logout", session.logout()).await;
}

/// PDUs that are refused, with as much data as they may have. Whichever other kind there is has its forms elsewhere: a
/// new one does not compile until it has some.
async fn pdus(meter: &mut Meter<'_>) {
    let _: fn(RequestPdu<'_>) = |pdu| match pdu {
        RequestPdu::NopOut(_) | RequestPdu::Text(_) | RequestPdu::Logout(_) => {} // `texts`
        RequestPdu::ScsiCommand(_) | RequestPdu::DataOut(_) => {}                 // `every_command`
        RequestPdu::TaskManagement(_) => {}                                       // `functions`
        RequestPdu::Login(_) => {}                                                // `logins`
        RequestPdu::Snack => {}
    };
    const SNACK: u8 = 0x10;
    const TO_AN_INITIATOR: u8 = 0x21;
    for opcode in [SNACK, TO_AN_INITIATOR] {
        let portal = meter.machine.portal();
        let mut wire = Wire::login(portal, &name("pdus"), false, &[]).await;
        let sent = async {
            wire.raw(opcode, 8 << 10).await;
        };
        meter.measure(&format!("PDU {opcode:02x}h"), sent).await;
    }
}

/// Logins with each key as often as there is room for it.
async fn logins(meter: &mut Meter<'_>) {
    let portal = meter.machine.portal();
    for discovers in [false, true] {
        for key in keys() {
            let pair = format!("{key}=1\0");
            let more = pair.repeat((8 << 10) / pair.len() - 128).into_bytes();
            let sent = async {
                let mut wire = Wire::connect(portal).await;
                wire.send_login(&name("logs-in"), discovers, &more).await;
            };
            meter
                .measure(&format!("login, {key}, discovery {discovers}"), sent)
                .await;
        }
        let sent = async {
            Wire::login(portal, &name("logs-in"), discovers, &[]).await;
        };
        meter
            .measure(&format!("login, discovery {discovers}"), sent)
            .await;
    }
}

/// All keys that are understood in some phase, and some that are not.
fn keys() -> impl Iterator<Item = &'static str> {
    iscsi::all_keys().chain(["a", "X-other", "X#other"])
}

/// NBD_OPT_EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY, LIST_META_CONTEXT, SET_META_CONTEXT.
const OPTIONS: [u32; 9] = [1, 2, 3, 5, 6, 7, 8, 9, 10];
/// NBD_CMD_READ, WRITE, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS.
const REQUESTS: [u16; 7] = [0, 1, 3, 4, 5, 6, 7];

/// A connection that has read the greeting.
async fn greeted(portal: SocketAddr) -> Wire {
    let mut wire = Wire::connect(portal).await;
    wire.take(18).await.expect("a greeting");
    wire.send_bytes(&[0, 0, 0, 3]).await;
    wire
}

/// A connection behind its handshake.
async fn let_in(portal: SocketAddr) -> Wire {
    let mut wire = greeted(portal).await;
    // No name, no information: NBD_OPT_GO is answered with NBD_REP_INFO and NBD_REP_ACK.
    wire.send_bytes(&sim::nbd_client::option(7, &[0; 6])).await;
    wire.take(20 + 12 + 20).await.expect("it is let in");
    wire
}

/// Whatever is not in [`OPTIONS`] and [`REQUESTS`] is refused as unknown.
async fn all_of_nbd_are_known(portal: SocketAddr) {
    const UNSUPPORTED: [u8; 4] = (1_u32 << 31 | 1).to_be_bytes();
    const INVALID: [u8; 4] = 22_u32.to_be_bytes();
    const DISCONNECT: u16 = 2;
    let mut wire = greeted(portal).await;
    for option in (1..64).filter(|option| !OPTIONS.contains(option)) {
        wire.send_bytes(&sim::nbd_client::option(option, &[])).await;
        let head = wire.take(20).await.expect("an answer");
        assert_eq!(
            head[12..16],
            UNSUPPORTED,
            "option {option} is understood: write its longest form here"
        );
        let len = u32::from_be_bytes(head[16..20].try_into().expect("four bytes"));
        wire.take(len as usize).await.expect("the reason");
    }
    let mut wire = let_in(portal).await;
    let known = |kind: &u16| REQUESTS.contains(kind) || *kind == DISCONNECT;
    for kind in (0..64).filter(|kind| !known(kind)) {
        let request = sim::nbd_client::request(kind, 0, 1, 0, 512);
        wire.send_bytes(&request).await;
        let answer = wire.take(16).await.expect("an answer");
        assert_eq!(
            answer[4..8],
            INVALID,
            "request {kind} is carried out: write its longest form here"
        );
    }
}

/// Every option of an NBD handshake with as much data as it may have, and every request.
async fn nbd(meter: &mut Meter<'_>) {
    let portal = meter.machine.nbd();
    let string = |len: usize| {
        let mut string = (len as u32).to_be_bytes().to_vec();
        string.extend(vec![b'n'; len]);
        string
    };
    let infos = [
        string(4096),
        6000_u16.to_be_bytes().to_vec(),
        vec![0; 12000],
    ]
    .concat();
    let queries = [string(4), 4000_u32.to_be_bytes().to_vec(), vec![0; 16000]].concat();
    let everything = vec![0; 16 << 10];
    all_of_nbd_are_known(portal).await;
    for option in OPTIONS.into_iter().chain([99]) {
        let data = match option {
            6 | 7 => &infos[..],
            9 | 10 => &queries[..],
            _ => &everything[..],
        };
        let mut wire = greeted(portal).await;
        let option_bytes = sim::nbd_client::option(option, data);
        let sent = async {
            wire.send_bytes(&option_bytes).await;
            wire.take(20).await;
        };
        meter.measure(&format!("NBD option {option}"), sent).await;
    }
    let mut wire = let_in(portal).await;
    let len = 1 << 20;
    for kind in REQUESTS.into_iter().chain([99]) {
        let data = if kind == 1 {
            vec![1; len as usize]
        } else {
            Vec::new()
        };
        let asked = if kind == 3 { 0 } else { len };
        let request = [sim::nbd_client::request(kind, 0, 1, 0, asked), data].concat();
        let answered = if kind == 0 { 16 + len as usize } else { 16 };
        let sent = async {
            wire.send_bytes(&request).await;
            wire.take(answered).await.expect("an answer");
        };
        meter.measure(&format!("NBD request {kind}"), sent).await;
    }
}

/// What an administrator can ask of the daemon. The counters are read beside the lanes, and what is logged changes there.
const CALLS: [&str; 5] = ["Show", "Counters", "Compare", "Log", "Apply"];
/// What lanes are asked on that account, or by each other.
const ASKED_OF_LANES: [&str; 9] = [
    "Serve",
    "MakeRoom",
    "EndSession",
    "Report",
    "EndTarget",
    "Prepare",
    "Forget",
    "Commit",
    "Stop",
];

/// The variants of the enumeration `name`, in their order.
fn variants<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = source.split_once(&format!("enum {name} {{")).expect(name);
    let lines = body.lines().take_while(|line| *line != "}");
    let lines = lines.filter_map(|line| line.strip_prefix("    "));
    let lines = lines.filter(|line| line.starts_with(char::is_uppercase));
    lines
        .map(|line| {
            line.split(|c: char| !c.is_alphanumeric())
                .next()
                .unwrap_or(line)
        })
        .collect()
}

/// What the daemon has its lanes do for an administrator.
async fn daemon(meter: &mut Meter<'_>) {
    let calls = include_str!("../../../crates/sanstone/src/admin/protocol.rs");
    let requests = include_str!("../../../crates/front-iscsi/src/request.rs");
    for (known, source, name) in [
        (&CALLS[..], calls, "AdminCall"),
        (&ASKED_OF_LANES, requests, "LaneRequest"),
    ] {
        let all = variants(source, name);
        assert_eq!(all, known, "write the longest form of a new one here");
    }
    let machine = meter.machine;
    let portal = machine.portal();
    for others in [201, 2] {
        let apply = machine.run(async move |served| {
            let over = served.server.change(config(portal, others)).await;
            over.expect("it may").await;
        });
        meter
            .measure(&format!("apply of {others} targets"), apply)
            .await;
    }
    let lane = machine.lane();
    let mirror = machine.run(async move |_| Mirror::open(lane).await).await;
    let compared = machine.run(async move |_| {
        mirror.compare().await;
        mirror
    });
    let mut ended = None;
    let compare = async { ended = Some(compared.await) };
    meter
        .measure("compare: the copies of a mirror", compare)
        .await;
    machine
        .run(async move |_| ended.expect("it was compared").close().await)
        .await;
    let sessions = machine.run(async |served| {
        assert!(!served.server.reporter().sessions().await.is_empty());
    });
    meter.measure("show: sessions", sessions).await;
    let lengths = machine.run(async |served| served.units.tell_changes());
    meter.measure("SIGHUP: lengths", lengths).await;
    let flush = machine.run(async |served| served.units.flush().await.expect("it works"));
    meter.measure("flush", flush).await;
}
