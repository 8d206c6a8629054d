//! Each key's result function, checked against RFC 7143 §13, and both roles against each other.

use proptest::prelude::*;

use super::negotiate::Negotiation;
use super::{OperationalConfig, SessionParameters};

fn answer(config: OperationalConfig, key: &str, value: &str) -> Option<String> {
    Negotiation::new(config).take(key, value).unwrap()
}

#[test]
fn each_key_is_answered_by_its_rule() {
    let cases = [
        ("HeaderDigest", "CRC32C,None", Some("None")),
        ("HeaderDigest", "CRC32C", Some("Reject")),
        ("InitialR2T", "Yes", Some("Yes")),
        ("InitialR2T", "No", Some("No")),
        ("ImmediateData", "No", Some("No")),
        ("ImmediateData", "maybe", Some("Reject")),
        ("MaxConnections", "8", Some("1")),
        ("MaxConnections", "0", Some("Reject")),
        ("MaxBurstLength", "16776192", Some("1048576")),
        ("MaxBurstLength", "0x200", Some("512")),
        ("MaxBurstLength", "511", Some("Reject")),
        ("FirstBurstLength", "524288", Some("262144")),
        ("DefaultTime2Wait", "5", Some("5")),
        ("DefaultTime2Wait", "0", Some("2")),
        ("DefaultTime2Retain", "20", Some("0")),
        ("MaxOutstandingR2T", "1", Some("1")),
        ("DataPDUInOrder", "No", Some("Yes")),
        ("DataSequenceInOrder", "No", Some("Yes")),
        ("ErrorRecoveryLevel", "2", Some("0")),
        ("MaxRecvDataSegmentLength", "4096", None),
        ("IFMarker", "Yes", Some("No")),
        ("OFMarkInt", "2048~8192", Some("Reject")),
        ("TaskReporting", "FastAbort,RFC3720", Some("RFC3720")),
        ("iSCSIProtocolLevel", "2", Some("1")),
        ("X-com.example.key", "1", Some("NotUnderstood")),
        ("X-io.sanstone.StageTimes", "Yes", Some("No")),
        ("X-io.sanstone.StageTimes", "No", Some("No")),
        ("X-io.sanstone.StageTimes", "maybe", Some("Reject")),
    ];
    for (key, value, expected) in cases {
        let got = answer(OperationalConfig::default(), key, value);
        assert_eq!(got.as_deref(), expected, "{key}={value}");
    }
}

#[test]
fn digests_are_taken_only_where_configured() {
    let config = OperationalConfig {
        header_digest: true,
        ..OperationalConfig::default()
    };
    assert_eq!(
        answer(config.clone(), "HeaderDigest", "CRC32C,None").as_deref(),
        Some("CRC32C")
    );
    assert_eq!(
        answer(config.clone(), "HeaderDigest", "None,CRC32C").as_deref(),
        Some("None")
    );
    assert_eq!(
        answer(config, "DataDigest", "CRC32C,None").as_deref(),
        Some("None")
    );
}

#[test]
fn an_initiator_takes_the_digests_that_a_target_insists_on() {
    for (wanted, list) in [(false, "None,CRC32C"), (true, "CRC32C,None")] {
        for (answer, is_used) in [("None", false), ("CRC32C", true)] {
            let mut negotiation = Negotiation::new(OperationalConfig {
                header_digest: wanted,
                ..OperationalConfig::default()
            });
            let offers = negotiation.offers();
            assert!(
                offers.contains(&("HeaderDigest", list.to_owned())),
                "{offers:?}"
            );
            negotiation.take("HeaderDigest", answer).unwrap();
            assert_eq!(negotiation.parameters().digests.header, is_used);
        }
    }
}

#[test]
fn a_key_may_come_once_and_a_bad_declaration_ends_it() {
    let mut negotiation = Negotiation::new(OperationalConfig::default());
    negotiation.take("InitialR2T", "Yes").unwrap();
    assert!(negotiation.take("InitialR2T", "No").is_err());
    assert!(negotiation.take("MaxRecvDataSegmentLength", "511").is_err());
}

#[test]
fn first_burst_never_exceeds_max_burst() {
    let mut negotiation = Negotiation::new(OperationalConfig::default());
    negotiation.take("FirstBurstLength", "65536").unwrap();
    negotiation.take("MaxBurstLength", "4096").unwrap();
    assert_eq!(negotiation.parameters().first_burst_length, 4096);
}

#[test]
fn a_discovery_session_has_no_use_for_data_keys() {
    let mut negotiation = Negotiation::new(OperationalConfig::default());
    negotiation.set_discovery();
    let answer = negotiation.take("MaxBurstLength", "4096").unwrap();
    assert_eq!(answer.as_deref(), Some("Irrelevant"));
    let answer = negotiation.take("DefaultTime2Wait", "1").unwrap();
    assert_eq!(answer.as_deref(), Some("2"));
}

#[test]
fn stage_times_are_offered_where_they_are_wanted_and_told_where_both_want_them() {
    const KEY: &str = "X-io.sanstone.StageTimes";
    let with = |stage_times| OperationalConfig {
        stage_times,
        ..OperationalConfig::default()
    };
    let offers = |mut negotiation: Negotiation| {
        let offers = negotiation.offers().into_iter();
        let offered = offers.filter(|(key, _)| *key == KEY);
        offered.map(|(_, value)| value).collect::<Vec<_>>()
    };
    assert_eq!(offers(Negotiation::new(with(false))), [""; 0]);
    assert_eq!(offers(Negotiation::new(with(true))), ["Yes"]);
    let mut discovery = Negotiation::new(with(true));
    discovery.set_discovery();
    assert_eq!(offers(discovery), [""; 0]);

    // A target that does not know the key, and ours.
    for (answer, is_agreed) in [
        ("NotUnderstood", false),
        ("Reject", false),
        ("Irrelevant", false),
        ("No", false),
        ("Yes", true),
    ] {
        let mut negotiation = Negotiation::new(with(true));
        negotiation.offers();
        assert_eq!(negotiation.take(KEY, answer).unwrap(), None, "{answer}");
        assert_eq!(negotiation.parameters().stage_times, is_agreed, "{answer}");
    }
    let mut negotiation = Negotiation::new(with(true));
    negotiation.offers();
    let error = negotiation.take(KEY, "2").unwrap_err().to_string();
    assert!(error.contains(KEY) && error.contains("\"2\""), "{error}");

    assert_eq!(answer(with(true), KEY, "Yes").as_deref(), Some("Yes"));
    let mut twice = Negotiation::new(with(true));
    twice.take(KEY, "Yes").unwrap();
    assert!(twice.take(KEY, "Yes").is_err());
    let mut discovery = Negotiation::new(with(true));
    discovery.set_discovery();
    let answer = discovery.take(KEY, "Yes").unwrap();
    assert_eq!(answer.as_deref(), Some("Irrelevant"));
    assert!(!discovery.parameters().stage_times);
}

fn config() -> impl Strategy<Value = OperationalConfig> {
    let length = || 512..=(1u32 << 24) - 1;
    let numbers = (
        length(),
        length(),
        length(),
        0..=3600u16,
        0..=3600u16,
        1..=u16::MAX,
    );
    (any::<[bool; 5]>(), numbers).prop_map(|(flags, numbers)| OperationalConfig {
        header_digest: flags[0],
        data_digest: flags[1],
        initial_r2t: flags[2],
        immediate_data: flags[3],
        max_recv_data_segment_length: numbers.0,
        max_burst_length: numbers.1,
        first_burst_length: numbers.2,
        default_time2wait_s: numbers.3,
        default_time2retain_s: numbers.4,
        max_outstanding_r2t: numbers.5,
        stage_times: flags[4],
    })
}

proptest! {
    #[test]
    fn both_sides_come_to_the_same_parameters(ours in config(), theirs in config()) {
        let (mut initiator, mut target) = (Negotiation::new(ours), Negotiation::new(theirs));
        for (key, value) in initiator.offers() {
            if let Some(answer) = target.take(key, &value).unwrap() {
                initiator.take(key, &answer).unwrap();
            }
        }
        let (key, value) = target.declaration().unwrap();
        initiator.take(key, &value).unwrap();
        let (initiator, target) = (initiator.parameters(), target.parameters());
        let swapped = SessionParameters {
            max_recv_data_segment_length: target.max_send_data_segment_length,
            max_send_data_segment_length: target.max_recv_data_segment_length,
            ..target
        };
        prop_assert_eq!(initiator, swapped);
    }
}
