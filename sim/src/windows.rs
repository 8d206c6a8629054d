//! A few windows of a large volume as a small one, for a model that remembers every sector. The windows lie at the
//! volume's ends and across the places where something begins anew in it, such as a stripe's units. A request that
//! covers several windows goes to the volume as one, gaps included, unless these are large. The gaps hold zeroes, which
//! reads check.

use std::{cell::Cell, ops::Range, rc::Rc};

use engine::{LaneFuture, Payload, sim::Random};
use volume::{Allocation, CompareOutcome, Durability, Len, Result, Shape, SharedVolume, Volume};

use crate::content::SECTOR_BYTES;

/// The length of a window.
pub const WINDOW_BYTES: u64 = 96 << 10;
/// Windows of a volume, at most.
const WINDOWS_MAX: usize = 5;
/// The longest request for several windows at once.
const REQUEST_BYTES_MAX: u64 = 9 << 20;

/// What the windows of a volume have encountered; shared by those of all lanes.
#[derive(Clone, Debug, Default)]
pub struct Encountered(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: Cell<u64>,
    in_flight: Cell<u64>,
    torn: Cell<u64>,
    across_gaps: Cell<u64>,
}

impl Encountered {
    /// How many writes failed of which a part was done and a part was not.
    pub fn torn(&self) -> u64 {
        self.0.torn.get()
    }

    /// How many requests were for several windows at once.
    pub fn across_gaps(&self) -> u64 {
        self.0.across_gaps.get()
    }

    /// The machine has stopped, and nothing is in flight any more.
    pub fn stopped(&self) {
        self.0.in_flight.set(0);
    }
}

/// Windows of a volume on one lane.
pub struct Windows {
    inner: SharedVolume,
    starts: Vec<u64>,
    shape: Shape,
    encountered: Encountered,
}

/// Draws the windows of a volume of `len` bytes in which something begins anew at every multiple of each of `units`.
/// Returns where they start.
pub fn draw(random: &mut Random, len: u64, units: &[u64]) -> Vec<u64> {
    let last = (len - WINDOW_BYTES) / 4096 * 4096;
    let mut drawn = vec![0, last];
    for _ in 0..2 * WINDOWS_MAX {
        let middle = match units {
            [] => random.below(len),
            units => {
                let unit = units[random.index(units.len())];
                unit * random.below(len / unit + 1)
            }
        };
        let start = middle.saturating_sub(WINDOW_BYTES / 2) / 4096 * 4096;
        drawn.push(start.min(last));
    }
    let mut starts: Vec<u64> = Vec::new();
    for start in drawn {
        let is_free = |&other: &u64| start.abs_diff(other) >= WINDOW_BYTES;
        if starts.len() < WINDOWS_MAX && starts.iter().all(is_free) {
            starts.push(start);
        }
    }
    starts.sort_unstable();
    starts
}

impl Windows {
    /// The windows of `inner` that start there.
    pub fn new(inner: SharedVolume, starts: &[u64], encountered: &Encountered) -> Windows {
        let shape = Shape {
            len: Len::new(starts.len() as u64 * WINDOW_BYTES),
            ..inner.shape().clone()
        };
        Windows {
            inner,
            starts: starts.to_vec(),
            shape,
            encountered: encountered.clone(),
        }
    }

    /// Where byte `at` of the windows lies in the volume.
    fn place(&self, at: u64) -> u64 {
        self.starts[(at / WINDOW_BYTES) as usize] + at % WINDOW_BYTES
    }

    /// The parts of a range within one window each.
    fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min((at / WINDOW_BYTES + 1) * WINDOW_BYTES);
            let piece = at..end;
            at = end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The requests for a range: all of it, or window by window.
    fn requests(&self, at: u64, len: u64) -> Vec<Range<u64>> {
        let all = at..at + len;
        let span = self.place(all.end - 1) + 1 - self.place(at);
        if span > REQUEST_BYTES_MAX {
            return Windows::pieces(all).collect();
        }
        if span > len {
            let across = &self.encountered.0.across_gaps;
            across.set(across.get() + 1);
        }
        vec![all]
    }

    /// Where a request lies in the volume, with its gaps.
    fn span(&self, request: &Range<u64>) -> Range<u64> {
        self.place(request.start)..self.place(request.end - 1) + 1
    }

    async fn read_all(&self, at: u64, len: u64) -> Result<Payload> {
        let mut all = Payload::default();
        for request in self.requests(at, len) {
            let span = self.span(&request);
            let read = self
                .inner
                .read(span.start, (span.end - span.start) as usize);
            let read = read.await?;
            let mut done = span.start;
            for piece in Windows::pieces(request) {
                let within = self.span(&piece);
                let offset = |at: u64| (at - span.start) as usize;
                let gap = read.slice(offset(done)..offset(within.start)).to_vec();
                assert!(gap.iter().all(|&byte| byte == 0), "data in a gap");
                all.append(read.slice(offset(within.start)..offset(within.end)));
                done = within.end;
            }
        }
        Ok(all)
    }

    /// The bytes of a request, with zeroes in its gaps.
    fn with_gaps(&self, request: Range<u64>, data: &Payload) -> Payload {
        let (mut all, mut done) = (Payload::default(), self.place(request.start));
        let first = request.start;
        for piece in Windows::pieces(request) {
            let within = self.span(&piece);
            if within.start > done {
                all.append(Payload::zeroes((within.start - done) as usize));
            }
            all.append(data.slice((piece.start - first) as usize..(piece.end - first) as usize));
            done = within.end;
        }
        all
    }

    async fn write_all(&self, at: u64, data: Payload, durability: Durability) -> Result<()> {
        let alone = self.begin();
        let mut ended = Ok(());
        for request in self.requests(at, data.len() as u64) {
            let start = self.place(request.start);
            let part = (request.start - at) as usize..(request.end - at) as usize;
            let bytes = self.with_gaps(request, &data.slice(part));
            ended = ended.and(self.inner.write(start, bytes, durability).await);
        }
        if ended.is_err() {
            self.look_whether_torn(at, &data, alone).await;
        }
        self.end();
        ended
    }

    /// A change begins. Returns its number if there is no other.
    fn begin(&self) -> Option<u64> {
        let counts = &self.encountered.0;
        counts.begun.set(counts.begun.get() + 1);
        counts.in_flight.set(counts.in_flight.get() + 1);
        (counts.in_flight.get() == 1).then_some(counts.begun.get())
    }

    fn end(&self) {
        let in_flight = &self.encountered.0.in_flight;
        in_flight.set(in_flight.get() - 1);
    }

    /// Counts a failed write that is there in part. Where another change was in flight it cannot be told.
    async fn look_whether_torn(&self, at: u64, data: &Payload, alone: Option<u64>) {
        let read = self.read_all(at, data.len() as u64).await;
        let counts = &self.encountered.0;
        let (Ok(read), true) = (read, alone == Some(counts.begun.get())) else {
            return;
        };
        let (found, written) = (read.to_vec(), data.to_vec());
        let sectors = found.chunks(SECTOR_BYTES).zip(written.chunks(SECTOR_BYTES));
        let done = sectors.filter(|(found, written)| found == written).count();
        if done > 0 && done < data.len() / SECTOR_BYTES {
            counts.torn.set(counts.torn.get() + 1);
        }
    }

    /// Makes a change of a range, window by window if it must be.
    async fn change<'a>(
        &'a self,
        at: u64,
        len: u64,
        change: impl Fn(u64, u64) -> LaneFuture<'a, Result<()>>,
    ) -> Result<()> {
        self.begin();
        let mut ended = Ok(());
        for request in self.requests(at, len) {
            let span = self.span(&request);
            ended = ended.and(change(span.start, span.end - span.start).await);
        }
        self.end();
        ended
    }
}

impl Volume for Windows {
    volume::pass_on! { self => self.inner; flush, atomic_writes, member, close }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(self.read_all(at, len as u64))
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.write_all(at, data, durability))
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.inner.write_atomic(self.place(at), data, durability)
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        self.inner
            .compare_and_write(self.place(at), data, durability)
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.change(at, len, move |at, len| {
            self.inner.write_zeroes(at, len, may_discard, durability)
        }))
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.change(at, len, |at, len| self.inner.discard(at, len)))
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        let len = len.min(WINDOW_BYTES - at % WINDOW_BYTES);
        self.inner.allocation(self.place(at), len)
    }
}
