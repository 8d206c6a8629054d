//! The forms: each request in the form that makes the machine work most.

use engine::share::charge;

use crate::{
    MEASURE, Meter, PLANTED, PLANTED_CHARGED,
    forms::{self, Form},
    machine::{CROWDED, SCRATCH, SLOW, config, list, name, reserve_out, transport_id},
    wire::{ATTRIBUTES, Wire},
};

/// How often a form is sent.
const TIMES: usize = 4;
/// Entries that the planted loop visits: what takes some 50 µs.
const PLANTED_ENTRIES: usize = 4096;

/// Measures all of them.
pub(crate) async fn all(meter: &mut Meter<'_>) {
    let mut wire = meter.machine.session().await;
    meter
        .measure(MEASURE, async {
            for _ in 0..TIMES {
                wire.command((SCRATCH, 1), &[0; 6], (&[], 0)).await;
            }
        })
        .await;
    planted(meter).await;
    every_command(meter, &mut wire).await;
    reservations(meter, &mut wire).await;
    attributes(meter, &mut wire).await;
    functions(meter, &mut wire).await;
    texts(meter, &mut wire).await;
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
                for _ in 0..form.count.min(TIMES) {
                    send(wire, lun, form).await;
                }
            };
            meter.measure(&format!("{name} ({n})"), measured).await;
        }
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

/// Every task management function, with commands open at other LUNs.
async fn functions(meter: &mut Meter<'_>, wire: &mut Wire) {
    // ABORT TASK to TARGET COLD RESET, TASK REASSIGN, and two that do not exist. The cold reset ends all sessions.
    for function in [1, 2, 3, 4, 5, 8, 9, 0x7F] {
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
    for function in [6, 7] {
        let mut other = Wire::login(meter.machine.portal(), &name("resets"), false, &[]).await;
        meter
            .measure(
                &format!("function {function}"),
                other.function(function, 0, 0),
            )
            .await;
    }
}

/// Texts of a session and of a discovery, with all keys there are.
async fn texts(meter: &mut Meter<'_>, wire: &mut Wire) {
    let _ = wire;
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
    for key in KEYS {
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

/// Logins with each key as often as there is room for it.
async fn logins(meter: &mut Meter<'_>) {
    let portal = meter.machine.portal();
    for discovers in [false, true] {
        for key in KEYS.into_iter().chain(["a"]) {
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

/// The keys of RFC 7143 §13 and of CHAP (RFC 7143 §12.1), and one of our own.
const KEYS: [&str; 37] = [
    "HeaderDigest",
    "DataDigest",
    "MaxConnections",
    "SendTargets",
    "TargetName",
    "InitiatorName",
    "TargetAlias",
    "InitiatorAlias",
    "TargetAddress",
    "TargetPortalGroupTag",
    "InitialR2T",
    "ImmediateData",
    "MaxRecvDataSegmentLength",
    "MaxBurstLength",
    "FirstBurstLength",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
    "SessionType",
    "TaskReporting",
    "iSCSIProtocolLevel",
    "IFMarker",
    "OFMarker",
    "IFMarkInt",
    "OFMarkInt",
    "AuthMethod",
    "CHAP_A",
    "CHAP_I",
    "CHAP_C",
    "CHAP_N",
    "CHAP_R",
    "X-io.sanstone.StageTimes",
    "X-other",
    "X#other",
];

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
    // EXPORT_NAME ends the handshake; 5 is STARTTLS, 8 to 10 structured replies and contexts, 11 and 99 unknown.
    for option in [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 99] {
        let data = match option {
            6 | 7 => &infos,
            9 | 10 => &queries,
            _ => &everything,
        };
        let mut wire = Wire::connect(portal).await;
        wire.take(18).await.expect("a greeting");
        wire.send_bytes(&[0, 0, 0, 3]).await;
        let option_bytes = sim::nbd_client::option(option, data);
        let sent = async {
            wire.send_bytes(&option_bytes).await;
            wire.take(20).await;
        };
        meter.measure(&format!("NBD option {option}"), sent).await;
    }
    let mut wire = Wire::connect(portal).await;
    wire.take(18).await.expect("a greeting");
    wire.send_bytes(&[0, 0, 0, 3]).await;
    // No name, no information: NBD_OPT_GO is answered with NBD_REP_INFO and NBD_REP_ACK.
    wire.send_bytes(&sim::nbd_client::option(7, &[0; 6])).await;
    wire.take(20 + 12 + 20).await.expect("it is let in");
    let len = 1 << 20;
    for kind in [0, 1, 3, 4, 5, 6, 7, 99] {
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

/// What the daemon has its lanes do for an administrator.
async fn daemon(meter: &mut Meter<'_>) {
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
    let sessions = machine.run(async |served| {
        assert!(!served.server.reporter().sessions().await.is_empty());
    });
    meter.measure("show: sessions", sessions).await;
    let lengths = machine.run(async |served| served.units.tell_changes());
    meter.measure("SIGHUP: lengths", lengths).await;
    let flush = machine.run(async |served| served.units.flush().await.expect("it works"));
    meter.measure("flush", flush).await;
}
