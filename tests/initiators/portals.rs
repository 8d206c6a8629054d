//! Portals: several portals and portal groups, IPv6, both address families on one socket, and a target that redirects
//! its initiators. libiscsi's tools and our own initiator read the discovery results and follow them.

use engine::Buf;
use harness::directory::Directory;
use harness::initiator::{at_url, on_lane};
use harness::process::program;
use harness::run::{Ran, run};
use harness::sanstone::{IQN, Sanstone, binary, target_table};
use harness::wire::{Direction, Session, is_closed};
use std::process::Command;
use std::time::Duration;
use volume::{Durability, IscsiDisk, Volume};

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

/// Serves a RAM disk whose target has these settings in place of its portals; one of them must be
/// on this port of 127.0.0.1.
fn serve(port: u16, place: &str) -> Sanstone {
    let directory = Directory::new();
    let portals = format!("portals = [\"127.0.0.1:{port}\"]");
    let table = target_table(port, &["disk"]).replace(&portals, place);
    Sanstone::serve_configuration(directory.path(), &format!("{RAM}{table}"), port)
        .owning(directory)
}

/// Redirects every login on this port.
fn redirect(port: u16, setting: &str, settings: &str) -> Sanstone {
    let directory = Directory::new();
    let configuration = format!(
        "[target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nredirect = {{ {setting} }}\n{settings}"
    );
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

#[track_caller]
fn tool(name: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program(name, "libiscsi-bin"));
    run(command.args(arguments), Duration::from_secs(120))
}

/// The portals that discovery reports, as `ADDRESS:PORT,TAG`.
#[track_caller]
fn portals(address: &str) -> Vec<String> {
    let ran = tool("iscsi-ls", &[&format!("iscsi://{address}")]).success();
    let lines = ran.stdout.lines();
    let portals = lines.filter_map(|line| line.split("Portal:").nth(1));
    portals.map(|portal| portal.trim().to_owned()).collect()
}

#[track_caller]
fn is_a_disk(address: &str) {
    let ran = tool("iscsi-inq", &[&format!("iscsi://{address}/{IQN}/0")]);
    let seen = ran.stdout.contains("Peripheral Device Type:DIRECT_ACCESS");
    assert!(ran.code() == Some(0) && seen, "{address}: {ran}");
}

/// Our own initiator writes there and reads it back.
fn holds_data(address: &str) {
    on_lane(async {
        let disk = IscsiDisk::open(at_url(&format!("iscsi://{address}/{IQN}/0"))).await;
        let disk = disk.unwrap_or_else(|error| panic!("{address}: {error}"));
        let bytes = harness::noise(3, 8192);
        let written = disk.write(4096, Buf::copy_of(&bytes).into(), Durability::Fua);
        written
            .await
            .unwrap_or_else(|error| panic!("{address}: {error}"));
        let read = disk.read(4096, bytes.len()).await;
        assert!(read.expect("a read").to_vec() == bytes, "{address}");
        disk.close().await;
    });
}

/// The status with which a login there is refused, and the text that comes with it.
fn refusal(address: &str) -> String {
    let refused = Session::login(address, IQN, 0, 1, &[]);
    refused.expect_err("the login is refused").to_string()
}

#[test]
fn every_portal_is_told_with_the_tag_of_its_group_and_answers_with_it() {
    let [one, two, three] = [(); 3].map(|()| harness::free_port());
    let _server = serve(
        one,
        &format!(
            "portal_groups = {{ 1 = [\"127.0.0.1:{one}\"], 20 = [\"127.0.0.2:{two}\", \"[::1]:{three}\"] }}"
        ),
    );
    let addresses = [
        format!("127.0.0.1:{one}"),
        format!("127.0.0.2:{two}"),
        format!("[::1]:{three}"),
    ];
    let tags = ["1", "20", "20"];
    let expected: Vec<String> = addresses
        .iter()
        .zip(tags)
        .map(|(a, t)| format!("{a},{t}"))
        .collect();
    for (address, tag) in addresses.iter().zip(tags) {
        let mut told = portals(address);
        told.sort();
        let mut expected = expected.clone();
        expected.sort();
        assert_eq!(told, expected, "at {address}");
        is_a_disk(address);
        holds_data(address);
        let session = Session::login(address, IQN, 0, 1, &[]).expect("a login");
        assert_eq!(
            session.answer("TargetPortalGroupTag"),
            Some(tag),
            "at {address}"
        );
    }
}

#[test]
fn each_group_is_a_target_port_with_sessions_of_its_own() {
    let [one, two] = [(); 2].map(|()| harness::free_port());
    let groups = format!("{{ 1 = [\"127.0.0.1:{one}\"], 2 = [\"127.0.0.1:{two}\"] }}");
    let _server = serve(one, &format!("portal_groups = {groups}"));
    let login = |port| {
        let session = Session::login(&format!("127.0.0.1:{port}"), IQN, 0, 1, &[]);
        let mut session = session.expect("a login");
        session.wait_until_ready().expect("the disk is ready");
        session
    };
    // The same initiator port at two target ports is two sessions (RFC 7143 §4.4.3).
    let (mut first, mut second) = (login(one), login(two));
    first.wait_until_ready().expect("it lives on");
    for (session, name) in [(&mut first, ",t,0x0001"), (&mut second, ",t,0x0002")] {
        let device_identification = [0x12, 1, 0x83, 1, 0, 0];
        let task = session.command(&device_identification, Direction::Read, 256, &[]);
        task.expect("the target reads");
        let page = session.receive().expect("a page").data;
        let page = String::from_utf8_lossy(&page).into_owned();
        assert!(
            page.contains(&format!("{IQN}{name}")),
            "no {name} in {page:?}"
        );
    }
    // At the same target port it reinstates the session.
    let _third = login(two);
    let error = second
        .wait_until_ready()
        .expect_err("two sessions at one port");
    assert!(is_closed(&error), "{error}");
    first
        .wait_until_ready()
        .expect("the other group's lives on");
}

#[test]
fn a_portal_on_all_addresses_is_told_as_the_one_that_was_used() {
    let port = harness::free_port();
    let _server = serve(port, &format!("portals = [\"0.0.0.0:{port}\"]"));
    for address in ["127.0.0.1", "127.0.0.2"] {
        let address = format!("{address}:{port}");
        assert_eq!(portals(&address), [format!("{address},1")]);
        is_a_disk(&address);
    }
    // [::] accepts both families; IPv4 peers are reported and admitted as IPv4.
    let port = harness::free_port();
    let only_from = "allow_from = [\"127.0.0.0/8\", \"::1\"]";
    let _server = serve(port, &format!("portals = [\"[::]:{port}\"]\n{only_from}"));
    for address in ["127.0.0.1", "127.0.0.2", "[::1]"] {
        let address = format!("{address}:{port}");
        assert_eq!(portals(&address), [format!("{address},1")]);
        is_a_disk(&address);
        holds_data(&address);
    }
}

#[test]
fn a_target_is_found_at_its_own_portals_only() {
    let [own, other] = [(); 2].map(|()| harness::free_port());
    let second = format!(
        "[target.\"{IQN}-2\"]\nluns = [\"disk\"]\nallow = [\"*\"]\nportals = [\"127.0.0.1:{other}\"]\n"
    );
    let directory = Directory::new();
    let configuration = format!("{RAM}{}{second}", target_table(own, &["disk"]));
    let _server =
        Sanstone::serve_configuration(directory.path(), &configuration, own).owning(directory);
    let [own, other] = [own, other].map(|port| format!("127.0.0.1:{port}"));
    assert_eq!(portals(&own), [format!("{own},1")]);
    assert_eq!(portals(&other), [format!("{other},1")]);
    is_a_disk(&own);
    let said = refusal(&other);
    assert!(said.contains("0x02 0x03"), "{said}");
}

#[test]
fn access_by_address_knows_both_families() {
    for (from, four, six) in [
        ("\"127.0.0.0/8\"", true, false),
        ("\"::1\"", false, true),
        ("\"fd00::/8\", \"::/64\"", false, true),
        ("\"fd00::/8\", \"::ffff:127.0.0.1\"", true, false),
    ] {
        let port = harness::free_port();
        let place = format!("portals = [\"[::]:{port}\"]\nallow_from = [{from}]");
        let _server = serve(port, &place);
        for (address, allowed) in [("127.0.0.1", four), ("[::1]", six)] {
            let address = format!("{address}:{port}");
            assert_eq!(!portals(&address).is_empty(), allowed, "{from} {address}");
            match allowed {
                true => is_a_disk(&address),
                false => assert!(refusal(&address).contains("0x02 0x02"), "{from} {address}"),
            }
        }
    }
}

#[test]
fn a_target_that_has_moved_sends_everybody_to_its_new_place() {
    let new = harness::free_port();
    let _served = serve(new, &format!("portals = [\"[::]:{new}\"]"));
    for (to, permanent, status) in [
        (format!("127.0.0.1:{new}"), false, "0x01 0x01"),
        (format!("[::1]:{new}"), false, "0x01 0x01"),
        (format!("[::1]:{new}"), true, "0x01 0x02"),
    ] {
        let setting = format!("to = \"{to}\", permanent = {permanent}");
        let old = harness::free_port();
        let _server = redirect(old, &setting, "allow = [\"*\"]\n");
        let address = format!("127.0.0.1:{old}");
        // Without a tag behind it (RFC 7143 §13.8).
        let said = refusal(&address);
        assert!(said.contains(status), "{said}");
        assert!(
            said.trim_end().ends_with(&format!("TargetAddress={to}")),
            "{said}"
        );
        if !permanent {
            // libiscsi follows only 0101h.
            is_a_disk(&address);
        }
        holds_data(&address);
        assert_eq!(portals(&address), [format!("{address},1")]);
    }
    // An initiator that may not log in learns no address.
    let setting = format!("to = \"127.0.0.1:{new}\"");
    let old = harness::free_port();
    let _server = redirect(
        old,
        &setting,
        "allow = [\"iqn.2026-11.io.sanstone:other\"]\n",
    );
    let said = refusal(&format!("127.0.0.1:{old}"));
    assert!(
        said.contains("0x02 0x02") && !said.contains("TargetAddress"),
        "{said}"
    );
}

#[test]
fn our_initiator_remembers_what_has_moved_for_good_and_does_not_go_round_in_circles() {
    let [old, new] = [(); 2].map(|()| harness::free_port());
    let url = format!("iscsi://127.0.0.1:{old}/{IQN}/0");
    let directory = Directory::new();
    let file = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    let served = Sanstone::serve_on(new, directory.path(), file, &["disk"]);
    let setting = format!("to = \"127.0.0.1:{new}\", permanent = true");
    let server = redirect(old, &setting, "allow = [\"*\"]\n");
    on_lane(async {
        let disk = IscsiDisk::open(at_url(&url)).await.expect("it is let in");
        // The old portal is gone and the new one restarts: the session still finds it.
        drop(server);
        drop(served);
        let _served = Sanstone::serve_on(new, directory.path(), file, &["disk"]);
        disk.read(0, 4096).await.expect("a read after the restart");
        disk.close().await;
    });
    let [here, there] = [(); 2].map(|()| harness::free_port());
    let to = |port: u16| format!("to = \"127.0.0.1:{port}\"");
    let _here = redirect(here, &to(there), "allow = [\"*\"]\n");
    let _there = redirect(there, &to(here), "allow = [\"*\"]\n");
    on_lane(async {
        let opened = IscsiDisk::open(at_url(&format!("iscsi://127.0.0.1:{here}/{IQN}/0"))).await;
        let error = opened.err().expect("nobody lets it in").to_string();
        assert!(error.contains("circle"), "{error}");
    });
}

#[test]
fn a_leaf_reaches_its_disk_over_ipv6_wherever_it_has_gone() {
    let disk = harness::free_port();
    let _disk = serve(disk, &format!("portals = [\"[::]:{disk}\"]"));
    let (old, setting) = (harness::free_port(), format!("to = \"[::1]:{disk}\""));
    let _old = redirect(old, &setting, "allow = [\"*\"]\n");
    for place in [format!("[::1]:{disk}"), format!("127.0.0.1:{old}")] {
        let directory = Directory::new();
        let leaf = format!("[volume.far]\niscsi = {{ url = \"iscsi://{place}/{IQN}/0\" }}\n");
        let server = Sanstone::serve(directory.path(), &leaf, &["far"]).owning(directory);
        let address = format!("127.0.0.1:{}", server.port());
        is_a_disk(&address);
        holds_data(&address);
    }
}

#[test]
fn a_place_that_cannot_be_meant_is_refused_by_name() {
    let chap = "chap = { user = \"a\", secret_file = \"s\" }";
    for (place, part) in [
        (
            "portals = [\"127.0.0.1:1\", \"0.0.0.0:1\"]".to_owned(),
            "0.0.0.0:1",
        ),
        (
            "portal_groups = { 0 = [\"127.0.0.1:1\"] }".to_owned(),
            "1 to 65535",
        ),
        (
            "redirect = { to = \"127.0.0.1:1\" }".to_owned(),
            "remove luns, or redirect",
        ),
        (
            format!("redirect = {{ to = \"127.0.0.1:1\" }}\n{chap}"),
            "remove chap, or redirect",
        ),
    ] {
        let directory = Directory::new();
        let table = target_table(1, &["disk"]).replace("portals = [\"127.0.0.1:1\"]", &place);
        let file = directory.write("bad.toml", format!("{RAM}{table}"));
        let mut command = Command::new(binary());
        let ran = run(
            command.args(["check", "-c"]).arg(file),
            Duration::from_secs(120),
        );
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(
            ran.stderr.contains("bad.toml:") && ran.stderr.contains(part),
            "{part}: {ran}"
        );
    }
}
