//! TLS: third-party clients with certificates, who is admitted, messages for bad files, and bytes that are not a
//! handshake.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use harness::directory::Directory;
use harness::free_port;
use harness::noise;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::{binary, call};

use crate::{LIMIT, MIB, SIZE, client, fio_verifies, nbdinfo};

const RAM: &str = "state = \"state\"\nlanes = 2\n[volume.db]\nram = { size = \"67108864B\" }\n";

/// A certificate authority and the certificates it signed, under the file names that libnbd and QEMU expect.
struct Authority(Directory);

impl Authority {
    fn new() -> Authority {
        let directory = Directory::new();
        directory.write("openssl.cnf", "[req]\ndistinguished_name=dn\n[dn]\n");
        let authority = Authority(directory);
        authority.make("ca", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        authority
    }

    /// Makes `NAME-cert.pem` and `NAME-key.pem`.
    fn make(&self, name: &str, further: &[&str]) {
        let path = |name: String| self.0.join(&name).display().to_string();
        let mut command = Command::new(program("openssl", "openssl"));
        command.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
        command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-config", &path("openssl.cnf".into())]);
        command.args(["-subj", &format!("/CN={name}")]);
        command.args(["-keyout", &path(format!("{name}-key.pem"))]);
        command.args(["-out", &path(format!("{name}-cert.pem"))]);
        run(command.args(further), LIMIT).success();
    }

    /// The same, signed.
    fn sign(&self, name: &str, further: &[&str]) {
        let (cert, key) = (self.path("ca-cert.pem"), self.path("ca-key.pem"));
        let mut arguments = vec!["-CA", &cert, "-CAkey", &key];
        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
        arguments.extend(further);
        self.make(name, &arguments);
    }

    fn with_server() -> Authority {
        let authority = Authority::new();
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        authority.sign("server", &["-addext", names]);
        authority
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A client's files: the authority's certificate and, if `named`, a client certificate.
    fn client(&self, named: bool) -> PathBuf {
        let directory = self.0.join(if named { "named" } else { "unnamed" });
        fs::create_dir(&directory).expect("a test can make directories");
        let copy = |from: &str, to: &str| {
            fs::copy(self.0.join(from), directory.join(to)).expect("a test can copy files");
        };
        copy("ca-cert.pem", "ca-cert.pem");
        if named {
            self.sign("client", &[]);
            copy("client-cert.pem", "client-cert.pem");
            copy("client-key.pem", "client-key.pem");
        }
        directory
    }
}

/// A memory volume served over TLS, at a private socket or at a port.
struct Secure {
    daemon: Daemon,
    directory: Directory,
    port: u16,
}

impl Secure {
    fn start(authority: &Authority, is_tcp: bool, needs_certificate: bool) -> Secure {
        let directory = Directory::new();
        let config = directory.write("sanstone.toml", RAM);
        let (socket, port) = (directory.join("db.sock"), free_port());
        let place = match is_tcp {
            true => format!("127.0.0.1:{port}"),
            false => format!("unix:{}", socket.display()),
        };
        let mut command = Command::new(binary());
        command.args(["attach", "-c"]).arg(config);
        command.args(["db", "--nbd", &place]);
        command.args(["--tls-certificate", &authority.path("server-cert.pem")]);
        command.args(["--tls-key", &authority.path("server-key.pem")]);
        if needs_certificate {
            command.args(["--tls-client-ca", &authority.path("ca-cert.pem")]);
        }
        let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
        match is_tcp {
            true => daemon.wait_for_port(port),
            false => daemon.wait_for_socket(&socket),
        }
        Secure {
            daemon,
            directory,
            port,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("db.sock")
    }

    fn uri(&self, certificates: &Path) -> String {
        let (socket, certificates) = (self.socket(), certificates.display());
        format!(
            "nbds+unix:///?socket={}&tls-certificates={certificates}",
            socket.display()
        )
    }

    /// The disk as QEMU's programs name it.
    fn disk(&self) -> String {
        let server = format!(
            "file.server.type=inet,file.server.host=localhost,file.server.port={}",
            self.port
        );
        format!("driver=raw,file.driver=nbd,{server},file.export=db,file.tls-creds=tls0")
    }

    fn tcp_uri(&self, certificates: &Path) -> String {
        let certificates = certificates.display();
        format!(
            "nbds://localhost:{}/db?tls-certificates={certificates}",
            self.port
        )
    }
}

/// The certificates as QEMU's programs name them.
fn credentials(certificates: &Path) -> String {
    let directory = certificates.display();
    format!("tls-creds-x509,id=tls0,endpoint=client,dir={directory}")
}

#[test]
fn libnbd_copies_by_tls_and_nobody_is_served_without() {
    let authority = Authority::with_server();
    let certificates = authority.client(false);
    let secure = Secure::start(&authority, true, false);
    let uri = secure.tcp_uri(&certificates);
    let told = nbdinfo(&[&uri]).success();
    assert!(told.stdout.contains("TLS"), "{told}");
    let data = noise(5, SIZE as usize);
    let image = secure
        .directory
        .write("in.img", &data)
        .display()
        .to_string();
    let out = secure.directory.join("out.img");
    client("nbdcopy", "libnbd-bin", &[&image, &uri]).success();
    client("nbdcopy", "libnbd-bin", &[&uri, &out.display().to_string()]).success();
    assert!(
        fs::read(&out).expect("it is there") == data,
        "the copy differs"
    );
    let plain = nbdinfo(&[&format!("nbd://localhost:{}/db", secure.port)]);
    assert_eq!(plain.code(), Some(1), "{plain}");
    assert!(plain.text().contains("TLS"), "{plain}");
}

#[test]
fn qemu_copies_by_tls() {
    let authority = Authority::with_server();
    let certificates = authority.client(true);
    let secure = Secure::start(&authority, true, true);
    let image = secure
        .directory
        .write("in.img", noise(6, 16 * MIB as usize));
    let image = image.display().to_string();
    let (credentials, disk) = (credentials(&certificates), secure.disk());
    let img = |arguments: &[&str]| client("qemu-img", "qemu-utils", arguments).success();
    let with = ["--object", &credentials, "--image-opts"];
    img(&[
        "convert",
        "-n",
        "-W",
        "-m",
        "8",
        "--object",
        &credentials,
        "--target-image-opts",
        "-f",
        "raw",
        &image,
        &disk,
    ]);
    let file = format!("driver=raw,file.filename={image}");
    img(&[&["compare"][..], &with, &[&file, &disk]].concat());
}

/// fio verifies the checksum of each block it reads, at every depth. Its NBD engine does not support certificates, so
/// QEMU is in between.
#[test]
fn fio_finds_every_block_as_it_was_written_by_tls() {
    let authority = Authority::with_server();
    let certificates = authority.client(false);
    let secure = Secure::start(&authority, true, false);
    let between = secure.directory.join("between.sock");
    let mut command = Command::new(program("qemu-nbd", "qemu-utils"));
    command.args(["--object", &credentials(&certificates)]);
    command.args(["--image-opts", &secure.disk(), "--persistent", "-k"]);
    command.arg(&between);
    let mut qemu = Daemon::start(&command, secure.directory.join("qemu-nbd.log"));
    qemu.wait_for_socket(&between);
    for depth in ["1", "8", "64"] {
        let uri = format!("nbd+unix:///?socket={}", between.display());
        fio_verifies(&uri, depth, &[]);
    }
}

#[test]
fn a_client_needs_a_certificate_of_the_authority_that_is_named() {
    let (authority, foreign) = (Authority::with_server(), Authority::new());
    let (named, unnamed) = (authority.client(true), authority.client(false));
    // A client that trusts the server, but whose certificate is from another authority.
    let stranger = foreign.client(true);
    fs::copy(authority.path("ca-cert.pem"), stranger.join("ca-cert.pem")).expect("a copy");
    let secure = Secure::start(&authority, false, true);
    nbdinfo(&["--size", &secure.uri(&named)]).success();
    for certificates in [unnamed, stranger] {
        let refused = nbdinfo(&["--size", &secure.uri(&certificates)]);
        assert_eq!(refused.code(), Some(1), "{refused}");
    }
    let log = secure.daemon.log_with_times("the TLS handshake failed", 2);
    assert!(log.contains("peer sent no certificates"), "{log}");
    assert!(log.contains("invalid peer certificate"), "{log}");
    // A client that does not trust the server disconnects.
    let distrustful = foreign.0.join("unnamed");
    fs::create_dir(&distrustful).expect("a directory");
    fs::copy(foreign.path("ca-cert.pem"), distrustful.join("ca-cert.pem")).expect("a copy");
    let leaves = nbdinfo(&["--size", &secure.uri(&distrustful)]);
    assert_eq!(leaves.code(), Some(1), "{leaves}");
}

#[test]
fn bad_files_are_named_with_what_mends_them() {
    let authority = Authority::with_server();
    let path = |name: &str| authority.path(name);
    authority.make("other", &[]);
    let empty = authority.0.write("empty.pem", "").display().to_string();
    let cut = fs::read_to_string(path("server-cert.pem")).expect("it is there");
    let cut = authority.0.write("cut.pem", &cut[..cut.len() / 2]);
    let cut = cut.display().to_string();
    let wrong = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let wrong = authority.0.write("wrong.pem", wrong).display().to_string();
    let config = authority
        .0
        .write("sanstone.toml", RAM)
        .display()
        .to_string();
    let start = |certificate: &str, key: &str, further: &[&str]| -> Ran {
        let mut arguments = vec!["attach", "-c", &config, "db", "--nbd", "127.0.0.1:0"];
        arguments.extend(["--tls-certificate", certificate, "--tls-key", key]);
        arguments.extend(further);
        call(&arguments)
    };
    let (cert, key, none) = (
        path("server-cert.pem"),
        path("server-key.pem"),
        path("none"),
    );
    for (ran, blamed, mend) in [
        (start(&none, &key, &[]), &none, "cannot read"),
        (start(&cert, &none, &[]), &none, "cannot read"),
        (start(&key, &key, &[]), &key, "BEGIN CERTIFICATE"),
        (start(&cut, &key, &[]), &cut, "PEM"),
        (start(&cert, &empty, &[]), &empty, "openssl pkey"),
        (start(&cert, &cert, &[]), &cert, "openssl pkey"),
        (start(&cert, &wrong, &[]), &wrong, "P-256"),
        (
            start(&cert, &path("other-key.pem"), &[]),
            &path("other-key.pem"),
            "does not match",
        ),
        (
            start(&cert, &key, &["--tls-client-ca", &empty]),
            &empty,
            "BEGIN CERTIFICATE",
        ),
    ] {
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.text().contains(blamed), "{ran}");
        assert!(ran.text().contains(mend), "{ran}");
    }
    // Giving only one of the options, or using them without NBD, is a usage error.
    for further in [&["--tls-key", &key][..], &["--tls-certificate", &cert]] {
        let line = ["attach", "-c", &config, "db", "--nbd", "127.0.0.1:0"];
        let ran = call(&[&line[..], further].concat());
        assert_eq!(ran.code(), Some(2), "{ran}");
    }
    let place = path("db.img");
    let line = ["attach", "-c", &config, "db", "--fuse", &place];
    let ran = call(&[&line[..], &["--tls-certificate", &cert, "--tls-key", &key]].concat());
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("--tls-certificate is for NBD"), "{ran}");
}

#[test]
fn a_certificate_that_nobody_takes_is_told_of_at_the_start() {
    let authority = Authority::with_server();
    let (cert, key) = (
        authority.path("server-cert.pem"),
        authority.path("server-key.pem"),
    );
    let mut until_yesterday = Command::new(program("openssl", "openssl"));
    until_yesterday.args(["x509", "-days", "-1", "-in", &cert, "-out", &cert]);
    run(until_yesterday.args(["-signkey", &key]), LIMIT).success();
    let secure = Secure::start(&authority, false, false);
    let log = secure
        .daemon
        .log_with("clients will refuse the certificate: it is valid from");
    assert!(log.contains(" UTC, and the time is now "), "{log}");
}

#[test]
fn a_client_that_asks_without_tls_is_told_of() {
    let authority = Authority::with_server();
    let secure = Secure::start(&authority, false, false);
    let mut stream = UnixStream::connect(secure.socket()).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    let mut request = 3u32.to_be_bytes().to_vec();
    // NBD_OPT_GO for the export without a name.
    request.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    stream.write_all(&request).expect("it is taken");
    secure
        .daemon
        .log_with("it asked for the volume without TLS");
}

/// A raw client that has requested TLS and received the reply.
fn begun(secure: &Secure, with_request: &[u8]) -> UnixStream {
    try_begin(secure, with_request).expect("it is let in")
}

/// The same, if it is not turned away.
fn try_begin(secure: &Secure, with_request: &[u8]) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(secure.socket())?;
    stream.read_exact(&mut [0; 18])?;
    let mut request = 3u32.to_be_bytes().to_vec();
    request.extend(b"IHAVEOPT");
    request.extend(5u32.to_be_bytes());
    request.extend(0u32.to_be_bytes());
    request.extend(with_request);
    stream.write_all(&request)?;
    let mut reply = [0; 20];
    stream.read_exact(&mut reply)?;
    assert_eq!(reply[12..16], 1u32.to_be_bytes(), "NBD_REP_ACK");
    Ok(stream)
}

/// All bytes until the connection ends; a reset counts as the end.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn what_is_no_handshake_ends_its_own_connection_alone() {
    let authority = Authority::with_server();
    let certificates = authority.client(false);
    let secure = Secure::start(&authority, false, false);
    let is_served = || nbdinfo(&["--size", &secure.uri(&certificates)]).success();
    // Silent clients are not dropped before the time limit; the log reports it in the end.
    let silent = begun(&secure, &[]);
    // The beginning of a record of 16 KiB, and nothing of it.
    let mut stalled = begun(&secure, &[]);
    stalled.write_all(&[22, 3, 1, 64, 0]).expect("it is taken");
    let hello_of_16_mib = [22, 3, 1, 64, 0, 1, 255, 255, 255];
    let mut endless = hello_of_16_mib.to_vec();
    endless.resize(5 + (16 << 10), 0);
    let records = [&[22, 3, 3, 64, 0][..], &[0; 16 << 10]].concat();
    for _ in 0..16 {
        endless.extend(&records);
    }
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 100_000],
        &endless,
        // Plain NBD after all.
        b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0",
    ] {
        let mut stream = begun(&secure, &[]);
        // The server may drop it half-way.
        let _ = stream.write_all(garbage);
        rest(stream);
        is_served();
    }
    // A record that is cut off.
    let mut stream = begun(&secure, &[]);
    stream.write_all(&[22, 3, 1, 2, 0, 1]).expect("it is taken");
    drop(stream);
    secure.daemon.log_with_times("the TLS handshake failed", 6);
    // Data injected into the stream before TLS must have no effect afterwards.
    rest(begun(&secure, b"IHAVEOPT\0\0\0\x03\0\0\0\0"));
    secure
        .daemon
        .log_with("between NBD_OPT_STARTTLS and the reply");
    is_served();
    secure.daemon.log_with_times("no handshake within", 2);
    rest(silent);
    rest(stalled);
    is_served();
}

/// A client beside so many of its own user that stop in the middle of their first message that there was once no room for
/// it.
#[test]
fn half_handshakes_of_its_own_user_keep_no_client_out() {
    const CROWD: usize = 600;
    let authority = Authority::with_server();
    let certificates = authority.client(true);
    let secure = Secure::start(&authority, false, true);
    let is_open = |stream: &mut UnixStream| {
        stream.set_nonblocking(true).expect("a socket");
        let read = stream.read(&mut [0; 64]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let open = || {
        let mut stream = try_begin(&secure, &[]).ok()?;
        stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).ok()?;
        Some(stream)
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                held.retain_mut(is_open);
                let missing = CROWD - held.len();
                held.extend((0..missing).filter_map(|_| open()));
                thread::yield_now();
            }
        });
        let uri = secure.uri(&certificates);
        let ran: Vec<Ran> = (0..20).map(|_| nbdinfo(&["--size", &uri])).collect();
        stop.store(true, Ordering::Relaxed);
        ran.into_iter().for_each(|ran| drop(ran.success()));
    });
}

#[test]
fn who_leaves_or_stays_is_no_hindrance_at_the_end() {
    let authority = Authority::with_server();
    let certificates = authority.client(false);
    let mut secure = Secure::start(&authority, false, false);
    let _silent = begun(&secure, &[]);
    let image = secure.directory.write("in.img", noise(9, SIZE as usize));
    let (image, uri) = (image.display().to_string(), secure.uri(&certificates));
    let copy = std::thread::spawn(move || {
        // It may or may not have completed by then.
        client("nbdcopy", "libnbd-bin", &[&image, &uri]);
    });
    secure.daemon.log_with("a client has connected");
    secure.daemon.signal("TERM");
    let status = secure.daemon.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", secure.daemon.log());
    copy.join().expect("the copy ends");
}
