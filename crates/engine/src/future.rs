//! A boxed future whose memory comes from the thread's free lists. The trait objects on the data
//! path (`dyn Volume`) return these, so that in the steady state nothing is allocated.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::Cell,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    ptr::NonNull,
    task::{Context, Poll},
};

/// Frame sizes are rounded up to these, in bytes; larger frames go to the global allocator.
const CLASSES_BYTES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];
/// Frames kept for reuse in each class; further ones go back to the global allocator.
const KEPT_PER_CLASS: usize = 1024;
const ALIGN: usize = 16;

/// A future on the heap, local to its lane. Like `Pin<Box<dyn Future>>`, but recycled, and a value that
/// is ready at once needs no heap.
pub struct LaneFuture<'a, T>(FutureState<'a, T>);

enum FutureState<'a, T> {
    /// The output, until it is taken.
    Ready(Option<T>),
    Pending(Frame<'a, T>),
}

/// A future with heap memory of its own.
struct Frame<'a, T> {
    future: NonNull<dyn Future<Output = T> + 'a>,
    /// The size class of the memory.
    class: Option<u8>,
    _not_send: PhantomData<*mut ()>,
}

impl<'a, T> LaneFuture<'a, T> {
    /// Moves `future` into a recycled frame.
    // Always inlined, so that captured values are written directly to the frame. As a call this
    // would copy the whole future, most of which is space for later states.
    #[inline(always)]
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> Self {
        let layout = Layout::new::<F>();
        let class = class_index(layout);
        let typed = take(class, layout).cast::<F>();
        // SAFETY: the frame is at least as large and aligned as `layout`, that of F.
        unsafe { typed.as_ptr().write(future) };
        LaneFuture(FutureState::Pending(Frame {
            future: typed,
            class,
            _not_send: PhantomData,
        }))
    }

    /// A future that has already completed.
    #[inline]
    pub fn ready(output: T) -> Self {
        LaneFuture(FutureState::Ready(Some(output)))
    }

    /// The output of a future that was [ready when created](Self::ready); `None`: it has to be polled.
    #[inline]
    pub fn as_ready(&self) -> Option<&T> {
        match &self.0 {
            FutureState::Ready(output) => output.as_ref(),
            FutureState::Pending(_) => None,
        }
    }
}

impl<T> Future for LaneFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.get_mut().0 {
            FutureState::Ready(output) => Poll::Ready(
                output
                    .take()
                    .expect("a finished future is not polled again"),
            ),
            // SAFETY: the frame is owned by self, never moves until it is dropped, and is polled
            // through an exclusive reference only.
            FutureState::Pending(frame) => unsafe {
                Pin::new_unchecked(frame.future.as_mut()).poll(cx)
            },
        }
    }
}

impl<T> Unpin for LaneFuture<'_, T> {}

impl<T> Drop for Frame<'_, T> {
    fn drop(&mut self) {
        // SAFETY: `new` wrote a future here.
        let layout = Layout::for_value(unsafe { self.future.as_ref() });
        // SAFETY: as above, and nothing else drops it.
        unsafe { self.future.as_ptr().drop_in_place() };
        give(self.future.cast(), self.class, layout);
    }
}

impl<T> fmt::Debug for LaneFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FutureState::Ready(_) => f.write_str("LaneFuture(ready)"),
            FutureState::Pending(frame) => {
                // SAFETY: `new` wrote a future here, and only its size is read.
                let bytes = size_of_val(unsafe { frame.future.as_ref() });
                write!(f, "LaneFuture({bytes} bytes)")
            }
        }
    }
}

thread_local! {
    static FREE: FreeFrames = const { FreeFrames([const { FreeList::new() }; CLASSES_BYTES.len()]) };
}

/// The retained frames of each class.
struct FreeFrames([FreeList; CLASSES_BYTES.len()]);

/// The retained frames of one class, as an intrusive linked list: each frame begins with the address
/// of the next one, so push and pop take only a few instructions.
struct FreeList {
    first: Cell<Option<NonNull<u8>>>,
    len: Cell<usize>,
}

impl FreeList {
    const fn new() -> Self {
        FreeList {
            first: Cell::new(None),
            len: Cell::new(0),
        }
    }

    fn pop(&self) -> Option<NonNull<u8>> {
        let first = self.first.get()?;
        // SAFETY: `push` wrote it there, and nobody has used the frame since.
        self.first.set(unsafe { first.cast().read() });
        self.len.set(self.len.get() - 1);
        Some(first)
    }

    /// Keeps an unused frame of this list's class, if there is room.
    fn push(&self, frame: NonNull<u8>) -> bool {
        let has_room = self.len.get() < KEPT_PER_CLASS;
        if has_room {
            // SAFETY: a frame is large and aligned enough for an address.
            unsafe { frame.cast().write(self.first.get()) };
            self.first.set(Some(frame));
            self.len.set(self.len.get() + 1);
        }
        has_room
    }
}

impl Drop for FreeFrames {
    fn drop(&mut self) {
        for (class, frames) in self.0.iter().enumerate() {
            while let Some(memory) = frames.pop() {
                // SAFETY: frames in a class were allocated with exactly this layout.
                unsafe { dealloc(memory.as_ptr(), class_layout(class)) };
            }
        }
    }
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(CLASSES_BYTES[class], ALIGN).expect("the class sizes are constants")
}

/// The size class for a future of this layout; `None`: too large or too strictly aligned to be recycled.
fn class_index(layout: Layout) -> Option<u8> {
    if layout.align() > ALIGN {
        return None;
    }
    let class = CLASSES_BYTES
        .iter()
        .position(|&bytes| layout.size() <= bytes)?;
    Some(class as u8)
}

/// The allocation layout of a frame of a class, or of a future of `layout` that has no class.
fn frame_layout(class: Option<u8>, layout: Layout) -> Layout {
    match class {
        Some(class) => class_layout(class.into()),
        None => Layout::from_size_align(layout.size().max(1), layout.align())
            .expect("growing an empty frame to one byte cannot overflow"),
    }
}

fn take(class: Option<u8>, layout: Layout) -> NonNull<u8> {
    let kept = class.and_then(|class| {
        FREE.try_with(|free| free.0[usize::from(class)].pop())
            .ok()?
    });
    kept.unwrap_or_else(|| {
        let layout = frame_layout(class, layout);
        // SAFETY: `frame_layout` ensures that every layout here has a size above zero.
        let memory = unsafe { alloc(layout) };
        NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
    })
}

fn give(memory: NonNull<u8>, class: Option<u8>, layout: Layout) {
    let kept = class.is_some_and(|class| {
        FREE.try_with(|free| free.0[usize::from(class)].push(memory))
            .unwrap_or(false)
    });
    if !kept {
        // SAFETY: `take` allocated this memory with this layout.
        unsafe { dealloc(memory.as_ptr(), frame_layout(class, layout)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_frame_is_used_again_and_its_future_dropped_once() {
        let counter = std::rc::Rc::new(());
        let mut cx = Context::from_waker(Waker::noop());
        let mut frames = std::collections::BTreeSet::new();
        for round in 0..10u64 {
            let held = counter.clone();
            let mut future = LaneFuture::new(async move {
                let _held = held;
                round
            });
            let FutureState::Pending(frame) = &future.0 else {
                panic!("it has to be polled");
            };
            frames.insert(frame.future.cast::<u8>());
            assert_eq!(Pin::new(&mut future).poll(&mut cx), Poll::Ready(round));
        }
        assert_eq!(frames.len(), 1, "ten frames in turn need the memory of one");
        assert_eq!(std::rc::Rc::strong_count(&counter), 1);
    }
    #[test]
    fn an_answer_that_is_at_hand_is_seen_before_it_is_polled_for() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut ready = LaneFuture::ready(1);
        assert_eq!(ready.as_ready(), Some(&1));
        assert_eq!(Pin::new(&mut ready).poll(&mut cx), Poll::Ready(1));
        assert_eq!(ready.as_ready(), None, "it has been given");
        assert_eq!(LaneFuture::new(async { 2 }).as_ready(), None);
    }
}
