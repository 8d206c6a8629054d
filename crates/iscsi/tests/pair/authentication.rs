//! CHAP between both roles, and each role against a peer that cheats: downgrades, wrong secrets, reflected
//! challenges, keys out of order, values of any length.

use std::sync::Arc;

use iscsi::pdu::{self, opcode};
use iscsi::*;
use proptest::prelude::*;

use crate::pair::*;

const SECRET: &str = "the initiator's secret";
const TARGET_SECRET: &str = "the target's own secret";

fn account(user: &str, secret: &str) -> ChapAccount {
    ChapAccount::new(user, ChapSecret::new(secret.as_bytes()).unwrap()).unwrap()
}

fn one_way() -> Chap {
    Chap::new(account("host", SECRET), None).unwrap()
}

fn mutual() -> Chap {
    Chap::new(
        account("host", SECRET),
        Some(account("disk", TARGET_SECRET)),
    )
    .unwrap()
}

fn with_random(chap: Chap, random: u8) -> Option<Authentication> {
    Some(Authentication::new(
        Arc::new(chap),
        [random; Authentication::RANDOM_LEN],
    ))
}

/// An initiator that uses the account `initiator`, if any, and a target that demands `target`, if any.
fn pair(initiator: Option<Chap>, target: Option<Chap>) -> Pair {
    let initiator = InitiatorConfig {
        authentication: initiator.and_then(|chap| with_random(chap, 1)),
        ..normal()
    };
    let mut pair = Pair::new(initiator, TargetConfig::default(), 5);
    pair.target.authentication = target.and_then(|chap| with_random(chap, 2));
    pair
}

fn closed(pair: &Pair) -> Option<CloseReason> {
    pair.initiator.events.iter().find_map(|event| match event {
        InitiatorEvent::Closed(reason) => Some(reason.clone()),
        _ => None,
    })
}

#[track_caller]
fn reason(pair: &mut Pair) -> CloseReason {
    pair.until("closed", |pair| closed(pair).is_some());
    assert!(
        !pair
            .target
            .saw(|event| matches!(event, TargetEvent::LoggedIn(_)))
    );
    closed(pair).unwrap()
}

/// Asserts that the target has refused the initiator, told it so, and knows why.
#[track_caller]
fn assert_refused_by_target(pair: &mut Pair, part_of_why: &str) {
    let status = LoginStatus::AUTHENTICATION_FAILURE;
    let refused = CloseReason::LoginRefused {
        status,
        target_address: None,
    };
    assert_eq!(reason(pair), refused);
    assert!(
        !pair
            .target
            .saw(|event| matches!(event, TargetEvent::SessionRequest(_)))
    );
    let knows = |event: &TargetEvent| match event {
        TargetEvent::AuthenticationFailed { why, .. } => why.contains(part_of_why),
        _ => false,
    };
    assert!(pair.target.saw(knows), "{:?}", pair.target.events);
}

#[track_caller]
fn assert_refused_by_initiator(pair: &mut Pair, part_of_why: &str) {
    match reason(pair) {
        CloseReason::Protocol(Error::Authentication(why)) => {
            assert!(why.contains(part_of_why), "{why}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_algorithm_authenticates_one_way_and_both() {
    for algorithm in ChapAlgorithm::ALL {
        for chap in [one_way(), mutual()] {
            let chap = chap.with_algorithms(&[algorithm]).unwrap();
            let mut pair = pair(Some(chap), Some(mutual()));
            pair.log_in();
            pair.target.medium = vec![7; 4096];
            let task = pair.read(0, 4096).unwrap();
            assert_eq!(pair.result(task), good(4096));
        }
    }
}

#[test]
fn a_discovery_session_authenticates_too() {
    let mut right = pair(Some(mutual()), Some(mutual()));
    let config = InitiatorConfig {
        authentication: with_random(mutual(), 1),
        ..InitiatorConfig::new(INITIATOR, None)
    };
    right.initiator.machine = InitiatorConnection::new(config);
    right.log_in();
    let mut without = pair(None, Some(one_way()));
    without.initiator.machine = InitiatorConnection::new(InitiatorConfig::new(INITIATOR, None));
    assert_refused_by_target(&mut without, "does not offer CHAP");
}

#[test]
fn who_does_not_offer_chap_is_refused() {
    assert_refused_by_target(&mut pair(None, Some(one_way())), "does not offer CHAP");
}

#[test]
fn a_wrong_name_or_secret_is_refused_alike() {
    for (user, secret) in [
        ("host", "not the right secret"),
        ("hose", SECRET),
        ("host2", SECRET),
    ] {
        let chap = Chap::new(account(user, secret), None).unwrap();
        assert_refused_by_target(&mut pair(Some(chap), Some(one_way())), "name or secret");
    }
}

#[test]
fn a_target_may_know_two_secrets_and_knows_which_one_was_used() {
    let (new, old) = (account("host", "the new secret"), account("host", SECRET));
    let chap = Chap::new(new.clone(), Some(account("disk", TARGET_SECRET))).unwrap();
    let chap = chap.with_old(old.clone()).unwrap();
    for (used, taken) in [(&new, Taken::Current), (&old, Taken::Old)] {
        let initiator = Chap::new(used.clone(), None).unwrap();
        let mut pair = pair(Some(initiator), Some(chap.clone()));
        pair.log_in();
        let account = pair.target.machine.login_report().account.cloned();
        assert_eq!(account.as_ref(), Some(used));
        assert_eq!(chap.takes(account.as_ref()), taken);
    }
    let neither = Chap::new(account("host", "neither of the two"), None).unwrap();
    assert_refused_by_target(
        &mut pair(Some(neither), Some(chap.clone())),
        "name or secret",
    );
    assert_eq!(chap.takes(None), Taken::No);
    for wrong in [new, account("host", TARGET_SECRET)] {
        chap.clone().with_old(wrong).unwrap_err();
    }
}

#[test]
fn a_target_that_proves_nothing_or_the_wrong_thing_is_left() {
    let wrong = Chap::new(
        account("host", SECRET),
        Some(account("disk", "another target's")),
    )
    .unwrap();
    assert_refused_by_initiator(&mut pair(Some(mutual()), Some(wrong)), "that of `mutual`");
    let wrong = Chap::new(
        account("host", SECRET),
        Some(account("dusk", TARGET_SECRET)),
    )
    .unwrap();
    assert_refused_by_initiator(&mut pair(Some(mutual()), Some(wrong)), "that of `mutual`");
    assert_refused_by_target(
        &mut pair(Some(mutual()), Some(one_way())),
        "`mutual` is not configured",
    );
}

#[test]
fn a_target_without_chap_is_left_by_who_wants_it() {
    let refused = assert_refused_by_target;
    refused(&mut pair(Some(one_way()), None), "none is configured");
}

#[test]
fn no_common_algorithm_is_refused() {
    let only = |algorithm| one_way().with_algorithms(&[algorithm]).unwrap();
    let mut pair = pair(
        Some(only(ChapAlgorithm::Md5)),
        Some(only(ChapAlgorithm::Sha256)),
    );
    assert_refused_by_target(&mut pair, "algorithms");
}

/// Both sides use the same challenge, which looks like a reflection to either.
#[test]
fn a_challenge_of_our_own_is_refused() {
    let mut pair = pair(Some(mutual()), Some(mutual()));
    pair.target.authentication = with_random(mutual(), 1);
    assert_refused_by_initiator(&mut pair, "our own, reflected");
}

/// DataSegmentLength.
fn length(text: &str) -> [u8; 3] {
    let [_, length @ ..] = (text.len() as u32).to_be_bytes();
    length
}

/// A scripted conversation with a target.
struct Words {
    target: TargetConnection,
    authentication: Option<Authentication>,
    refused: Option<(LoginStatus, Option<&'static str>)>,
}

const SECURITY_STAY: u8 = 0x00;
const SECURITY_LEAVE: u8 = 0x81;
const NAMES: &str = "InitiatorName=iqn.i TargetName=iqn.t ";

impl Words {
    fn with(chap: Chap) -> Words {
        Words {
            target: TargetConnection::new(TargetConfig::default()),
            authentication: with_random(chap, 2),
            refused: None,
        }
    }

    /// Sends a Login Request; returns flags and text of the response. Blanks separate pairs.
    fn say(&mut self, flags: u8, text: &str) -> (u8, String) {
        let text = text.replace(' ', "\0");
        let header = pdu::LoginRequest {
            opcode: opcode::LOGIN_REQUEST | opcode::IMMEDIATE,
            flags,
            initiator_task_tag: 3.into(),
            data_segment_length: length(&text),
            ..Default::default()
        };
        self.target
            .receive(0, &header.to_bytes(), &[], RxData::Inline(text.as_bytes()));
        let mut failure = None;
        while let Some(event) = self.target.poll_event() {
            match event {
                TargetEvent::LoginRequest(_) => match self.authentication.take() {
                    Some(authentication) => {
                        self.target.login_authenticate(1, authentication).unwrap()
                    }
                    None => self.target.login_continue(1).unwrap(),
                },
                TargetEvent::SessionRequest(_) => self.target.login_accept(1).unwrap(),
                TargetEvent::AuthenticationFailed { why, .. } => {
                    failure = Some(why);
                    let status = LoginStatus::AUTHENTICATION_FAILURE;
                    self.target.login_reject(status, None).unwrap();
                }
                TargetEvent::Closed(CloseReason::LoginRefused { status, .. }) => {
                    self.refused = Some((status, failure));
                }
                _ => {}
            }
        }
        let response = self
            .target
            .poll_transmit()
            .expect("every request is answered");
        let TransmitData::Inline(text) = response.data else {
            return (response.header[1], String::new());
        };
        (response.header[1], String::from_utf8(text).unwrap())
    }

    /// Up to and including the challenge.
    fn challenged(chap: Chap) -> Words {
        let mut words = Words::with(chap);
        let (flags, text) = words.say(SECURITY_STAY, &format!("{NAMES}AuthMethod=CHAP,None "));
        assert_eq!(
            (flags, &*text),
            (0, "TargetPortalGroupTag=1\0AuthMethod=CHAP\0")
        );
        let (flags, text) = words.say(SECURITY_STAY, "CHAP_A=9,5,8 ");
        assert_eq!(flags, 0);
        assert_eq!(
            text,
            format!("CHAP_A=5\0CHAP_I=2\0CHAP_C=0x{}\0", "02".repeat(16))
        );
        words
    }

    #[track_caller]
    fn assert_failed(&self, part_of_why: &str) {
        match self.refused {
            Some((LoginStatus::AUTHENTICATION_FAILURE, Some(why))) => {
                assert!(why.contains(part_of_why), "{why}");
            }
            other => panic!("{other:?} instead of {part_of_why:?}"),
        }
        assert!(!self.target.wants_read());
    }
}

/// MD5 of identifier 2, [`SECRET`], and sixteen bytes of 2.
const RIGHT: &str = "CHAP_N=host CHAP_R=0x1202c347c7e0ea7755a742a198246771 ";

#[test]
fn the_right_words_open_the_door() {
    let mut words = Words::challenged(one_way());
    assert_eq!(
        words.say(SECURITY_LEAVE, RIGHT),
        (SECURITY_LEAVE, String::new())
    );
    assert_eq!(words.say(0x87, "").0, 0x87);
    assert_eq!(words.refused, None);
    // Also in two steps, and with mutual CHAP that nobody requested.
    let mut words = Words::challenged(mutual());
    assert_eq!(words.say(SECURITY_STAY, RIGHT), (0, String::new()));
    assert_eq!(words.say(SECURITY_LEAVE, "").0, SECURITY_LEAVE);
    // Also in base64.
    let mut words = Words::challenged(mutual());
    let (flags, _) = words.say(
        SECURITY_LEAVE,
        "CHAP_N=host CHAP_R=0bEgLDR8fg6ndVp0KhmCRncQ== CHAP_I=0x10 CHAP_C=0bAAAA ",
    );
    assert_eq!((flags, words.refused), (SECURITY_LEAVE, None));
}

#[test]
fn there_is_no_way_around_the_challenge() {
    // Directly into the operational stage, or through it.
    for text in ["", "AuthMethod=None "] {
        let mut words = Words::with(one_way());
        words.say(0x87, &format!("{NAMES}{text}"));
        words.assert_failed("without authentication");
    }
    for (flags, text, why) in [
        (SECURITY_LEAVE, "", "without authentication"),
        (SECURITY_STAY, "AuthMethod=None ", "does not offer CHAP"),
        (
            SECURITY_LEAVE,
            "AuthMethod=KRB5,SPKM1,None ",
            "does not offer CHAP",
        ),
        (SECURITY_STAY, "CHAP_A=5 ", "without AuthMethod"),
    ] {
        let mut words = Words::with(one_way());
        words.say(flags, &format!("{NAMES}{text}"));
        words.assert_failed(why);
    }
    // The method is agreed on, but then nothing follows, or something else.
    for (flags, text, why) in [
        (SECURITY_LEAVE, "", "CHAP_A"),
        (SECURITY_STAY, "", "CHAP_A"),
        (SECURITY_STAY, "AuthMethod=None ", "does not offer CHAP"),
        (SECURITY_STAY, "CHAP_A=5 CHAP_N=host CHAP_R=0x00 ", "CHAP_A"),
        (SECURITY_STAY, "CHAP_A= ", "algorithms"),
        (SECURITY_STAY, "CHAP_A=4,9,255,x ", "algorithms"),
        (SECURITY_STAY, "CHAP_A=5 CHAP_A=7 ", "twice"),
    ] {
        let mut words = Words::with(one_way());
        words.say(SECURITY_STAY, &format!("{NAMES}AuthMethod=CHAP "));
        words.say(flags, text);
        words.assert_failed(why);
    }
    // A request to leave the stage is held back until the initiator has authenticated.
    let mut words = Words::with(one_way());
    let (flags, _) = words.say(SECURITY_LEAVE, &format!("{NAMES}AuthMethod=CHAP "));
    assert_eq!(flags, 0);
    let (flags, _) = words.say(0x83, "CHAP_A=5 ");
    assert_eq!(flags, 0);
    let (flags, _) = words.say(0x83, "");
    assert_ne!(flags & 0x80, 0x80);
    words.assert_failed("CHAP_N and CHAP_R");
}

#[test]
fn damaged_answers_fail() {
    let long = "f".repeat(2050);
    for (text, why) in [
        ("", "CHAP_N and CHAP_R"),
        ("CHAP_N=host ", "CHAP_N and CHAP_R"),
        ("CHAP_N=host CHAP_R=0x ", "length"),
        ("CHAP_N=host CHAP_R=0x00 ", "length"),
        (
            "CHAP_N=host CHAP_R=0x1202c347c7e0ea7755a742a19824677100 ",
            "length",
        ),
        (
            "CHAP_N=host CHAP_R=1202c347c7e0ea7755a742a198246771 ",
            "length",
        ),
        (
            "CHAP_N= CHAP_R=0x1202c347c7e0ea7755a742a198246771 ",
            "name or secret",
        ),
        (
            "CHAP_N=Host CHAP_R=0x1202c347c7e0ea7755a742a198246771 ",
            "name or secret",
        ),
        (&format!("{RIGHT}CHAP_A=5 "), "twice"),
        (&format!("{RIGHT}CHAP_I=1 "), "belong together"),
        (&format!("{RIGHT}CHAP_I=256 CHAP_C=0x00 "), "0 to 255"),
        (&format!("{RIGHT}CHAP_I=-1 CHAP_C=0x00 "), "0 to 255"),
        (&format!("{RIGHT}CHAP_I=1 CHAP_C=0x "), "1 to 1024"),
        (&format!("{RIGHT}CHAP_I=1 CHAP_C=0x{long} "), "1 to 1024"),
        (
            &format!("{RIGHT}CHAP_I=1 CHAP_C=0x{} ", "02".repeat(16)),
            "our own challenge",
        ),
        (
            &format!("{RIGHT}CHAP_I=2 CHAP_C=0bAgICAgICAgICAgICAgICAg== "),
            "our own challenge",
        ),
    ] {
        let mut words = Words::challenged(mutual());
        let (_, said) = words.say(SECURITY_LEAVE, text);
        words.assert_failed(why);
        assert!(said.is_empty(), "a refusal tells nothing: {said}");
    }
}

#[test]
fn nothing_is_proved_to_who_has_proved_nothing() {
    let mut words = Words::challenged(mutual());
    let wrong = "0".repeat(32);
    let text = format!("CHAP_N=host CHAP_R=0x{wrong} CHAP_I=1 CHAP_C=0x00112233 ");
    assert_eq!(words.say(SECURITY_LEAVE, &text).1, "");
    words.assert_failed("name or secret");
}

#[test]
fn chap_keys_that_nobody_agreed_on_are_an_error_of_the_initiator() {
    for (flags, text) in [
        (SECURITY_STAY, "CHAP_A=5 "),
        (0x87, "CHAP_N=x CHAP_R=0x00 "),
    ] {
        let mut words = Words::with(one_way());
        words.authentication = None;
        words.say(flags, &format!("{NAMES}{text}"));
        assert_eq!(words.refused, Some((LoginStatus::INITIATOR_ERROR, None)));
    }
}

#[test]
fn a_refusal_is_understood_whatever_its_stat_sn() {
    let config = InitiatorConfig {
        authentication: with_random(one_way(), 1),
        ..normal()
    };
    let mut initiator = InitiatorConnection::new(config);
    for (stat_sn, status, text) in [(5u32, 0u16, "AuthMethod=CHAP\0"), (0, 0x0201, "")] {
        let header = pdu::LoginResponse {
            opcode: opcode::LOGIN_RESPONSE,
            stat_sn: stat_sn.into(),
            status: status.into(),
            data_segment_length: length(text),
            ..Default::default()
        };
        initiator.receive(0, &header.to_bytes(), &[], RxData::Inline(text.as_bytes()));
    }
    let (status, target_address) = (LoginStatus::AUTHENTICATION_FAILURE, None);
    let refused = CloseReason::LoginRefused {
        status,
        target_address,
    };
    assert_eq!(
        initiator.poll_event(),
        Some(InitiatorEvent::Closed(refused))
    );
}

/// Sends scripted responses to an initiator; returns why it closed.
fn initiator_hears(chap: Chap, responses: &[(u8, &str)]) -> Option<CloseReason> {
    let config = InitiatorConfig {
        authentication: with_random(chap, 1),
        ..normal()
    };
    let mut initiator = InitiatorConnection::new(config);
    for (number, (flags, text)) in responses.iter().enumerate() {
        while initiator.poll_transmit().is_some() {}
        let text = text.replace(' ', "\0");
        let header = pdu::LoginResponse {
            opcode: opcode::LOGIN_RESPONSE,
            flags: *flags,
            stat_sn: (number as u32).into(),
            data_segment_length: length(&text),
            ..Default::default()
        };
        initiator.receive(0, &header.to_bytes(), &[], RxData::Inline(text.as_bytes()));
    }
    std::iter::from_fn(|| initiator.poll_event()).find_map(|event| match event {
        InitiatorEvent::Closed(reason) => Some(reason),
        _ => None,
    })
}

#[test]
fn an_initiator_does_not_let_itself_be_downgraded() {
    const CHALLENGE: (u8, &str) = (0, "CHAP_A=5 CHAP_I=7 CHAP_C=0x0011223344556677 ");
    const METHOD: (u8, &str) = (0, "AuthMethod=CHAP ");
    let cases: [(&[(u8, &str)], &str); 12] = [
        (&[(0, "AuthMethod=None ")], "does not accept CHAP"),
        (
            &[(SECURITY_LEAVE, "AuthMethod=None ")],
            "does not accept CHAP",
        ),
        (&[(SECURITY_LEAVE, "")], "does not accept CHAP"),
        (&[(0, "AuthMethod=Reject ")], "does not accept CHAP"),
        (&[METHOD, METHOD], "out of turn"),
        (
            &[METHOD, (0, "CHAP_A=9 CHAP_I=7 CHAP_C=0x00 ")],
            "none of the algorithms",
        ),
        (&[METHOD, (0, "CHAP_A=5 CHAP_I=7 ")], "belong together"),
        (&[METHOD, (0, "CHAP_A=5 ")], "did not send CHAP_I"),
        (&[METHOD, (SECURITY_LEAVE, "")], "did not send CHAP_A"),
        (
            &[METHOD, CHALLENGE, (SECURITY_LEAVE, "")],
            "did not authenticate itself",
        ),
        (
            &[METHOD, CHALLENGE, (0, ""), (SECURITY_LEAVE, "")],
            "did not authenticate itself",
        ),
        (
            &[
                METHOD,
                CHALLENGE,
                (SECURITY_LEAVE, "CHAP_N=disk CHAP_R=0x00 "),
            ],
            "did not authenticate",
        ),
    ];
    for (responses, part_of_why) in cases {
        match initiator_hears(mutual(), responses) {
            Some(CloseReason::Protocol(Error::Authentication(why))) => {
                assert!(why.contains(part_of_why), "{why} for {responses:?}");
            }
            other => panic!("{other:?} for {responses:?}"),
        }
    }
    // A target that lets us leave the stage before it has seen our response.
    let early = (SECURITY_LEAVE, CHALLENGE.1);
    let reason = initiator_hears(one_way(), &[METHOD, early]);
    assert!(
        matches!(reason, Some(CloseReason::Protocol(_))),
        "{reason:?}"
    );
    assert_eq!(
        initiator_hears(one_way(), &[METHOD, CHALLENGE, (SECURITY_LEAVE, "")]),
        None
    );
}

/// Text that is often nearly valid.
fn text_strategy() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("AuthMethod"),
        Just("CHAP_A"),
        Just("CHAP_I"),
        Just("CHAP_C"),
        Just("CHAP_N"),
        Just("CHAP_R"),
        Just("HeaderDigest"),
    ];
    let value = prop_oneof![
        Just("CHAP".to_owned()),
        Just("CHAP,None".to_owned()),
        Just("5".to_owned()),
        Just("8,7,6,5".to_owned()),
        Just("host".to_owned()),
        "0[xXbB][0-9a-zA-Z+/=]{0,80}",
        "\\PC{0,40}",
    ];
    proptest::collection::vec((key, value), 0..5).prop_map(|pairs| {
        pairs
            .iter()
            .map(|(key, value)| format!("{key}={value}\0"))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics_or_opens_the_door(
        texts in proptest::collection::vec((text_strategy(), any::<bool>()), 1..6)
    ) {
        let mut words = Words::with(mutual());
        let mut flags_seen = Vec::new();
        for (number, (text, leave)) in texts.iter().enumerate() {
            let flags = if *leave { SECURITY_LEAVE } else { SECURITY_STAY };
            let names = if number == 0 { "InitiatorName=iqn.i\0TargetName=iqn.t\0" } else { "" };
            flags_seen.push(words.say(flags, &format!("{names}{text}")).0);
            if words.refused.is_some() {
                break;
            }
        }
        prop_assert!(flags_seen.iter().all(|flags| flags & 0x80 == 0));
        let responses: Vec<_> = texts.iter().map(|(text, leave)| (u8::from(*leave) * 0x81, &**text)).collect();
        initiator_hears(mutual(), &responses);
    }
}
