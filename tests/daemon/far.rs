//! The disk of another daemon over ways that can fail, below a volume under test.

use harness::{
    directory::Directory,
    forwarder::Forwarder,
    sanstone::{Sanstone, call, target_table},
};

/// The patience of an hour: what hangs hangs until the test ends it.
pub(crate) const PATIENT: &str =
    "request_timeout = \"1h\", ping_timeout = \"1h\", reconnect_timeout = \"1h\"";

const DISK: &str = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";

/// The disk, of 16 MiB.
pub(crate) struct Far {
    directory: Directory,
    server: Sanstone,
    /// The ways, which can fail.
    pub(crate) ways: Vec<Forwarder>,
}

impl Far {
    /// One with this many ways to it.
    pub(crate) fn new(ways: usize) -> Far {
        let directory = Directory::new();
        let server = Sanstone::serve(directory.path(), DISK, &["disk"]);
        let to = ([127, 0, 0, 1], server.port()).into();
        Far {
            directory,
            server,
            ways: (0..ways).map(|_| Forwarder::new("127.0.0.1", to)).collect(),
        }
    }

    /// A volume of it, by all ways.
    pub(crate) fn volume(&self, settings: &str) -> String {
        let path = |way: &Forwarder| format!("{{ portal = \"{}\" }}", way.address());
        let paths: Vec<String> = self.ways.iter().map(path).collect();
        let (url, paths) = (self.server.url(0), paths.join(", "));
        format!("iscsi = {{ url = \"{url}\", paths = [{paths}], {settings} }}")
    }

    /// Takes the disk away from its target, or gives it back.
    pub(crate) fn offers(&self, offers: bool) {
        let target = target_table(self.server.port(), &["disk"]);
        let target = match offers {
            true => target,
            false => target.replace("luns = [\"disk\"]", "luns = { 7 = \"disk\" }"),
        };
        let file = self
            .directory
            .write("sanstone.toml", format!("{DISK}{target}"));
        call(&["apply", "-c", file.to_str().expect("plain text")]).success();
    }

    /// Ends its server, and starts it again when the result is called.
    pub(crate) fn away(self) -> impl FnOnce() -> (Sanstone, Directory, Vec<Forwarder>) {
        let port = self.server.port();
        drop(self.server);
        move || {
            let server = Sanstone::serve_on(port, self.directory.path(), DISK, &["disk"]);
            (server, self.directory, self.ways)
        }
    }
}
