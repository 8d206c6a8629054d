//! Tracks which iSCSI disks are in use, so that no disk is used twice: a cache above one volume would miss the
//! other's writes, and a stripe would overwrite itself.
//!
//! A repeated URL is detected before anything is opened. Aliases and multiple portals of one disk are detected once
//! the disks are open, by the names they report; also those of another process that has the owner's identity.

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, Weak},
};

use super::{DiskIdentity, url::IscsiUrl};
use crate::{Error, ErrorKind, Result, claim::StandingFile, kinds::USE_IT_TWICE, part::Part};

/// The open disks.
#[derive(Debug, Default)]
pub(super) struct Disks(Vec<OpenDisk>);

#[derive(Debug)]
struct OpenDisk {
    part: Weak<Part>,
    /// The volume that it is, or is a part of.
    volume: String,
    url: String,
    identity: DiskIdentity,
    /// Shows other processes that this one has it.
    _shown: Option<StandingFile>,
}

impl Disks {
    /// Registers the disk at `url`, which is `part` of `volume`, and shows it in `claims`.
    ///
    /// # Errors
    /// When it is already open, unless it is write-protected.
    pub(super) async fn add(
        &mut self,
        volume: &str,
        url: &IscsiUrl,
        identity: DiskIdentity,
        part: &Arc<Part>,
        claims: Option<&Path>,
    ) -> Result<()> {
        self.0.retain(|open| open.part.strong_count() > 0);
        let mut disk = OpenDisk {
            part: Arc::downgrade(part),
            volume: volume.to_owned(),
            url: url.to_string(),
            identity,
            _shown: None,
        };
        if !part.shape().read_only.is_on() {
            self.0.iter().try_for_each(|open| disk.is_not(open))?;
            if let (Some(claims), Some(name)) = (claims, disk.identity.worldwide_name()) {
                let number = u128::from(crc32c::crc32c(name.as_bytes())) << 64;
                let shown = StandingFile::alone_aside(claims, number).await;
                disk._shown = Some(shown.map_err(|error| error.context(url))?);
            }
        }
        self.0.push(disk);
        Ok(())
    }
}

impl OpenDisk {
    fn is_not(&self, open: &OpenDisk) -> Result<()> {
        let Some(name) = self.identity.in_common(&open.identity) else {
            return Ok(());
        };
        let message = format!(
            "{} in \"{}\" and {} in \"{}\" are the same disk, {name}, and would overwrite each \
             other; {USE_IT_TWICE}",
            self.url, self.volume, open.url, open.volume
        );
        Err(Error::new(ErrorKind::Configuration, message))
    }
}

/// The normal form of a URL: addresses in canonical form, names in lower case (RFC 7143 §4.2.7).
pub(super) fn normalised(url: &IscsiUrl) -> IscsiUrl {
    let host = match url.host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => url.host.trim_end_matches('.').to_ascii_lowercase(),
    };
    IscsiUrl {
        host,
        target: url.target.to_ascii_lowercase(),
        ..*url
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, rc::Rc};

    use engine::{Lane, LaneConfig, net::TcpListener};

    use crate::{
        foreign::{Claims, Foreign, Group},
        graph::Graph,
        values::ConfigError,
    };

    /// NAA 6h, of a logical unit.
    const DESIGNATOR: [u8; 20] = [
        1, 3, 0, 16, 0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    ];

    /// Runs `test` with a graph built from `text`, called with the URLs of two portals of one disk.
    fn with_two_portals(
        text: impl FnOnce(&str, &str) -> String,
        test: impl AsyncFnOnce(Graph, engine::LaneHandle),
    ) {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let foreign = Rc::new(Foreign::new(Claims {
                designators: DESIGNATOR.to_vec(),
                ..Claims::default()
            }));
            let leaf = || {
                let listener = TcpListener::bind(([127, 0, 0, 1], 0).into());
                let listener = listener.expect("a free port");
                let portal = listener.local_addr();
                foreign.serve(listener, Group(1));
                format!("iscsi = {{ url = \"iscsi://{portal}/iqn.2026-11.example:foreign/0\" }}")
            };
            let text = text(&leaf(), &leaf());
            let volumes = toml::from_str(&text).expect("it parses");
            let graph = Graph::new(volumes, Path::new("")).expect("the configuration is valid");
            test(graph, lane.handle()).await;
        });
    }

    fn refused(error: &ConfigError, volumes: [&str; 2]) {
        let message = error.message();
        let names = volumes.map(|volume| format!(" in \"{volume}\""));
        let is_told = names.iter().all(|name| message.contains(name));
        assert!(is_told && message.contains("naa.6001020304"), "{message}");
    }

    #[test]
    fn two_volumes_through_two_portals_of_one_disk_are_refused() {
        let text = |a: &str, b: &str| {
            format!(
                "one.{a}\ntwo.cache = {{ size = \"1MiB\", only_writer = true, of = {{ {b} }} }}\nagain = \"one\"\n"
            )
        };
        with_two_portals(text, async |mut graph, lane| {
            let one = graph.open("one", &lane).await.expect("the only one");
            let error = graph.open("two", &lane).await.expect_err("it is open");
            refused(&error, ["one", "two"]);
            graph.open("again", &lane).await.expect("it is the same");
            drop(one);
            graph.open("two", &lane).await.expect("the only one now");
        });
    }

    #[test]
    fn a_stripe_of_one_disk_and_itself_is_refused() {
        let text = |a: &str, b: &str| format!("db.stripe = {{ of = [{{ {a} }}, {{ {b} }}] }}");
        with_two_portals(text, async |mut graph, lane| {
            let error = graph.open("db", &lane).await.expect_err("one disk");
            refused(&error, ["db", "db"]);
        });
    }
}
