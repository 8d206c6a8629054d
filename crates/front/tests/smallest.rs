//! The smallest front there can be, to copy from: on a Unix socket it answers each line `read AT LEN` with so many bytes of
//! one disk, or with a line that begins with `error`. It lets in whom the other fronts would, answers what it has accepted
//! before it stops, and cannot change what it serves.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    env,
    future::pending,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    pin::pin,
    process,
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use engine::{
    Buf, Gather, Lane, LaneConfig, LaneFuture, Share,
    cross::{OneshotSender, Receiver, oneshot},
    net::TcpStream,
    spawn,
    sync::Notify,
    task::{self, Either, spawn_for},
    time,
};
use front::{
    Acceptor, Accepts, Address, Admission, Arrival, Ended, Front, FrontConfig, FrontLanes,
    LaneFront, Limit, Listener, LocalFile, Newcomer, NoSessions, OwnLane, Peer, PlaceLimits,
    Reporter, StartError, report::Consequence,
};
use unit::{
    CommandId, DiskSpec, LaneUnits, Luns, MemoryLimits, TargetPort, Units, UnitsConfig, no_commands,
};
use volume::{SharedVolume, leaf::ram::Region};

const LUN: u32 = 0;
const LINE_BYTES_MAX: usize = 64;
/// How long a client may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);
const PORT: &str = "iqn.2026-11.io.sanstone:smallest";

/// What it serves, and where.
struct Smallest {
    volume: String,
    path: PathBuf,
}

impl FrontConfig for Smallest {
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn Front>, StartError>> {
        LaneFuture::new(async move {
            let bound = Listener::unix(&self.path).await;
            let listener = bound
                .map_err(|error| StartError::address(Address::Unix(self.path.clone()), &error))?;
            let admission = Arc::new(Admission::new(PlaceLimits {
                sessions: 8,
                reserved: 0,
                logins: 8,
                logins_per_peer: 8,
            }));
            let opening = FrontLanes::start::<Connections>(units, (self.volume, admission.clone()));
            let lanes = opening.await.map_err(StartError::Unit)?;
            let stop = Rc::new(Notify::new());
            let acceptor = Acceptor::new(Policy(admission.clone()), lanes.clone());
            spawn(acceptor.accept(listener, stop.clone()));
            let running = Running {
                path: self.path,
                admission,
                lanes,
                stop,
            };
            Ok(Box::new(running) as Box<dyn Front>)
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Who is let in.
struct Policy(Arc<Admission<Arrival<Policy>>>);

impl Accepts for Policy {
    type Request = Request;
    type Ends = String;
    const BEFORE_SESSION: &'static str = "had not asked for anything";

    fn admission(&self) -> &Admission<Arrival<Policy>> {
        &self.0
    }

    fn ends(listener: &Listener, stream: &TcpStream) -> Option<(Peer, String)> {
        listener.peer(stream)
    }

    fn serve(newcomer: Newcomer<String>) -> Request {
        Request::Serve(newcomer)
    }

    fn make_room(id: u64) -> Request {
        Request::MakeRoom(id)
    }

    fn limit(&self, _: Limit) -> String {
        "8".to_owned()
    }

    fn sessions_max(&self) -> Option<usize> {
        Some(8)
    }
}

/// What a lane is asked.
enum Request {
    Serve(Newcomer<String>),
    MakeRoom(u64),
    Stop(OneshotSender<()>),
}

/// The connections of one lane.
struct Connections {
    units: Rc<LaneUnits>,
    luns: Rc<Luns>,
    admission: Arc<Admission<Arrival<Policy>>>,
    /// Each with what makes it leave.
    open: RefCell<BTreeMap<u64, Rc<Leave>>>,
    /// Notified when one has left.
    left: Notify,
}

/// A connection is to leave. It may be told before it waits to be, so that it is a state, and not a notification alone.
#[derive(Default)]
struct Leave {
    is_told: Cell<bool>,
    told: Notify,
}

impl Leave {
    fn tell(&self) {
        self.is_told.set(true);
        self.told.notify();
    }

    async fn is_told(&self) {
        self.told
            .wait_for(|| self.is_told.get().then_some(()))
            .await;
    }
}

impl LaneFront for Connections {
    type Config = (String, Arc<Admission<Arrival<Policy>>>);
    type Request = Request;

    async fn open(
        (volume, admission): Self::Config,
        _: OwnLane<Request>,
        units: Rc<LaneUnits>,
    ) -> Result<Rc<Self>, String> {
        let port = TargetPort {
            target_name: PORT.to_owned(),
            portal_group_tag: 1,
            relative_port: 1,
            port_group: 1,
        };
        let unit = units.unit(&volume, port, true, false)?;
        Ok(Rc::new(Connections {
            units,
            luns: Rc::new(BTreeMap::from([(LUN, unit)])),
            admission,
            open: RefCell::default(),
            left: Notify::new(),
        }))
    }

    async fn run(self: Rc<Self>, requests: Receiver<Request>) {
        while let Some(request) = requests.receive().await {
            match request {
                Request::Serve(newcomer) => {
                    let (id, leave) = (newcomer.id, Rc::<Leave>::default());
                    self.open.borrow_mut().insert(id, leave.clone());
                    spawn_for(Share::of(id), self.clone().serve(newcomer, leave));
                }
                Request::MakeRoom(id) => {
                    if let Some(leave) = self.open.borrow().get(&id) {
                        leave.tell();
                    }
                }
                Request::Stop(done) => {
                    self.open.borrow().values().for_each(|leave| leave.tell());
                    let none = || self.open.borrow().is_empty().then_some(());
                    self.left.wait_for(none).await;
                    done.send(());
                }
            }
        }
    }
}

impl Connections {
    /// Serves one connection to the end of its last read.
    async fn serve(self: Rc<Self>, newcomer: Newcomer<String>, leave: Rc<Leave>) {
        let (id, peer) = (newcomer.id, newcomer.ends);
        self.admission.enter(id, &peer, time::now());
        let nexus = self.units.enter(&peer, &self.luns, no_commands());
        let port = format!("{PORT}-{id},i,0x000000000000");
        self.luns[&LUN].logical.borrow().establish(nexus.id, &port);
        nexus.take_attention(LUN);
        let (stream, mut received) = (newcomer.stream.on_lane(), Vec::new());
        let mut leave = pin!(leave.is_told());
        let mut operation = CommandId(0);
        loop {
            // Only the wait is given up: a read that has begun goes to its end.
            let asked = range(&stream, &mut received);
            let Either::Other(Some(range)) = task::either(leave.as_mut(), asked).await else {
                break;
            };
            operation.0 += 1;
            let mut answer = Gather::new();
            // What is paid for is kept until it is sent.
            let read = self.units.read(&nexus, (operation, LUN), range).await;
            match &read {
                Ok((data, _paid)) => answer.push_payload(data, 0..data.len()),
                Err(error) => answer.push_bytes(format!("error: {error}\n").as_bytes()),
            }
            // One that does not read holds nobody up.
            let sent = time::timeout(ANSWER_LIMIT, stream.send_all(answer)).await;
            if sent.is_none_or(|(sent, _)| sent.is_err()) {
                break;
            }
        }
        self.units.leave(&nexus).await;
        self.admission.leave(id, time::now());
        self.open.borrow_mut().remove(&id);
        self.left.notify();
    }
}

/// The range of the next line, in bytes; `None` if there is none.
async fn range(stream: &TcpStream, received: &mut Vec<u8>) -> Option<(u64, u32)> {
    let end = loop {
        if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        let (len, buf) = stream.receive(Buf::new(LINE_BYTES_MAX), 0).await;
        let len = len.ok().filter(|len| *len > 0)?;
        received.extend_from_slice(&buf[..len]);
        if received.len() > LINE_BYTES_MAX {
            return None;
        }
    };
    let line: Vec<u8> = received.drain(..=end).collect();
    let line = String::from_utf8(line).ok()?;
    let (at, len) = line.trim_end().strip_prefix("read ")?.split_once(' ')?;
    Some((at.parse().ok()?, len.parse().ok()?))
}

/// It serves.
struct Running {
    path: PathBuf,
    admission: Arc<Admission<Arrival<Policy>>>,
    lanes: FrontLanes<Request>,
    stop: Rc<Notify>,
}

impl Front for Running {
    fn name(&self) -> &'static str {
        "smallest"
    }

    fn places(&self) -> Vec<String> {
        vec![format!("unix:{}", self.path.display())]
    }

    fn check(&self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        LaneFuture::new(async { Err(StartError::Fixed) })
    }

    fn consequences(&self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Vec<Consequence>> {
        LaneFuture::new(async { Vec::new() })
    }

    fn prepare(&mut self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        LaneFuture::new(async { Err(StartError::Fixed) })
    }

    fn discard(&mut self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async {})
    }

    fn commit(&mut self) -> LaneFuture<'static, ()> {
        unreachable!("it prepares nothing")
    }

    fn reporter(&self) -> Box<dyn Reporter> {
        Box::new(NoSessions)
    }

    fn clients(&self) -> Vec<String> {
        self.admission.sessions(|arrival| arrival.ends.clone())
    }

    fn ended(&self) -> LaneFuture<'_, Ended> {
        LaneFuture::new(pending())
    }

    fn file(&self) -> Option<&dyn LocalFile> {
        None
    }

    fn stop(self: Box<Self>) -> LaneFuture<'static, ()> {
        self.stop.notify();
        LaneFuture::new(async move {
            self.lanes.answers("end", Request::Stop).await;
        })
    }
}

fn disk() -> DiskSpec {
    let region = Region::new(1 << 20, 512).expect("memory for a small disk");
    DiskSpec {
        name: "disk".to_owned(),
        uuid: [1; 16],
        open: Arc::new(move || {
            let region = region.clone();
            LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
        }),
        kept: None,
        told: Vec::new(),
    }
}

/// What a client gets for `line`, in `len` bytes at most.
fn ask(path: &Path, line: &str, len: usize) -> Vec<u8> {
    let mut client = UnixStream::connect(path).expect("it listens");
    client.write_all(line.as_bytes()).expect("it reads");
    let mut answer = vec![0; len];
    let got = client.read(&mut answer).expect("it answers");
    answer.truncate(got);
    answer
}

#[test]
fn a_front_of_two_hundred_lines_serves_a_disk_to_its_end() {
    let path = env::temp_dir().join(format!("sanstone-smallest-{}", process::id()));
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let config = UnitsConfig {
            disks: vec![disk()],
            keep: None,
            note: None,
            limits: MemoryLimits::default(),
        };
        let units = Units::open(config, &[handle]).await.expect("its disk");
        let config = Smallest {
            volume: "disk".to_owned(),
            path: path.clone(),
        };
        let front = Box::new(config).start(&units).await.expect("it starts");
        let (done, answers) = oneshot();
        let at = path.clone();
        let client = thread::spawn(move || {
            let path = at;
            done.send([
                ask(&path, "read 512 4096\n", 4096),
                ask(&path, "read 1 512\n", 4096),
                ask(&path, "write 0 512\n", 4096),
            ]);
        });
        let [data, refused, nothing] = answers.outcome().await.expect("the client ends");
        client.join().expect("no panic");
        assert_eq!(data, [0; 4096]);
        assert_eq!(refused, b"error: the range is not in whole blocks\n");
        assert_eq!(nothing, b"");
        // One that reads nothing, and one that asks for nothing, are no reason to stay.
        let mut silent = UnixStream::connect(&path).expect("it listens");
        for _ in 0..64 {
            silent.write_all(b"read 0 1048576\n").expect("it reads");
        }
        let idle = UnixStream::connect(&path).expect("it listens");
        let stopped = time::timeout(Duration::from_secs(60), front.stop()).await;
        stopped.expect("it stops");
        drop((silent, idle));
    });
}
