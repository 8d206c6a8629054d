//! Names of initiators as they come and as they are written in `allow`.

use harness::directory::Directory;
use harness::initiator::{on_lane, on_port};
use harness::run::Ran;
use harness::sanstone::{Sanstone, call, target_table};
use volume::{IscsiConfig, IscsiDisk};

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

fn table(port: u16, allow: &str) -> String {
    let table = target_table(port, &["disk"]);
    format!("{RAM}{}", table.replace("[\"*\"]", allow))
}

#[test]
fn whoever_is_named_gets_in_whatever_the_case_of_its_name() {
    let directory = Directory::new();
    let port = harness::free_port();
    let allow = "[\"iqn.1994-05.com.redhat:db_host\", \"eui.02004567A425678D\"]";
    let _server = Sanstone::serve_configuration(directory.path(), &table(port, allow), port);
    on_lane(async {
        for (name, let_in) in [
            ("iqn.1994-05.com.redhat:db_host", true),
            ("iqn.1994-05.com.redhat:DB_Host", true),
            ("eui.02004567A425678D", true),
            ("eui.02004567a425678d", true),
            ("EUI.02004567A425678D", true),
            ("iqn.1994-05.com.redhat:db-host", false),
        ] {
            for target in [str::to_owned, str::to_uppercase] {
                let disk = IscsiConfig {
                    initiator_name: name.to_owned(),
                    target_name: target(&on_port(port).target_name),
                    ..on_port(port)
                };
                match IscsiDisk::open(disk).await {
                    Ok(disk) if let_in => disk.close().await,
                    Err(error) if !let_in => {
                        assert!(error.to_string().contains("0x0202"), "{error}");
                    }
                    Ok(_) => panic!("{name} got in"),
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
    });
}

#[test]
fn what_cannot_be_a_name_is_refused_for_the_character_at_fault() {
    let check = |name: &str| -> Ran {
        let directory = Directory::new();
        let file = directory.write("names.toml", table(3260, &format!("[{name:?}]")));
        call(&["check", "-c", &file.to_string_lossy()])
    };
    for (name, why) in [
        ("iqn.1994-05.com.redhat:db host", "it contains ' '"),
        ("dbhost", "it does not begin with iqn., eui. or naa."),
    ] {
        let ran = check(name);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(
            ran.stderr.contains(name) && ran.stderr.contains(why),
            "{ran}"
        );
    }
}
