//! What is passed on exactly as it was asked: by a layer to the volume below ([`pass_on!`](crate::pass_on)), or from a lane to
//! the volume's home lane (`pass_home!`).

/// Inside an `impl Volume`, writes the named calls as calls of the volume below. A layer names each one, so a new
/// call of the trait does not compile until every layer has said what becomes of it.
///
/// ```text
/// impl Volume for Counted {
///     pass_on! { self => self.inner; shape, read, flush, member, close }
///     …
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    ($self:ident => $below:expr; $($call:ident),+ $(,)?) => {
        $($crate::pass_on! { @$call $self $below })+
    };
    (@shape $self:ident $below:expr) => {
        fn shape(&$self) -> &$crate::Shape {
            $below.shape()
        }
    };
    (@read $self:ident $below:expr) => {
        fn read(
            &$self,
            at: u64,
            len: usize,
        ) -> ::engine::LaneFuture<'_, $crate::Result<::engine::Payload>> {
            $below.read(at, len)
        }
    };
    (@write $self:ident $below:expr) => {
        $crate::pass_on! { @data write $self $below }
    };
    (@write_atomic $self:ident $below:expr) => {
        $crate::pass_on! { @data write_atomic $self $below }
    };
    (@data $call:ident $self:ident $below:expr) => {
        fn $call(
            &$self,
            at: u64,
            data: ::engine::Payload,
            durability: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $below.$call(at, data, durability)
        }
    };
    (@flush $self:ident $below:expr) => {
        fn flush(&$self) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $below.flush()
        }
    };
    (@member $self:ident $below:expr) => {
        fn member(
            &$self,
            order: $crate::member::Order,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$crate::member::Report>> {
            $below.member(order)
        }
    };
    (@close $self:ident $below:expr) => {
        fn close(&$self) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $below.close()
        }
    };
    (@discard $self:ident $below:expr) => {
        fn discard(&$self, at: u64, len: u64) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $below.discard(at, len)
        }
    };
    (@allocation $self:ident $below:expr) => {
        fn allocation(
            &$self,
            at: u64,
            len: u64,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$crate::Allocation>> {
            $below.allocation(at, len)
        }
    };
    (@atomic_writes $self:ident $below:expr) => {
        fn atomic_writes(&$self) -> Option<$crate::AtomicWrites> {
            $below.atomic_writes()
        }
    };
    (@compare_and_write $self:ident $below:expr) => {
        fn compare_and_write(
            &$self,
            at: u64,
            data: ::engine::Payload,
            durability: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$crate::CompareOutcome>> {
            $below.compare_and_write(at, data, durability)
        }
    };
    (@write_zeroes $self:ident $below:expr) => {
        fn write_zeroes(
            &$self,
            at: u64,
            len: u64,
            may_discard: bool,
            durability: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $below.write_zeroes(at, len, may_discard, durability)
        }
    };
}

/// In an `impl Volume`: forwards every request to what is below once that is there, which `$below` waits for, or says why it is
/// not. It has no atomic writes, as they are asked for without waiting.
#[macro_export]
macro_rules! pass_on_once_there {
    ($self:ident => $below:expr; $($call:ident($($name:ident: $type:ty),*) -> $output:ty),* $(,)?) => {
        $(
            fn $call(&$self, $($name: $type),*) -> ::engine::LaneFuture<'_, $crate::Result<$output>> {
                ::engine::LaneFuture::new(async move { $below?.$call($($name),*).await })
            }
        )*
    };
    ($self:ident => $below:expr) => {
        $crate::pass_on_once_there! {
            $self => $below;
            read(at: u64, len: usize) -> ::engine::Payload,
            write(at: u64, data: ::engine::Payload, durability: $crate::Durability) -> (),
            write_atomic(at: u64, data: ::engine::Payload, durability: $crate::Durability) -> (),
            write_zeroes(at: u64, len: u64, may_discard: bool, durability: $crate::Durability) -> (),
            compare_and_write(at: u64, data: ::engine::Payload, durability: $crate::Durability) -> $crate::CompareOutcome,
            flush() -> (),
            member(order: $crate::member::Order) -> $crate::member::Report,
            discard(at: u64, len: u64) -> (),
            allocation(at: u64, len: u64) -> $crate::Allocation,
        }

        fn atomic_writes(&$self) -> Option<$crate::AtomicWrites> {
            None
        }
    };
}

/// Inside an `impl Volume`, has the home lane answer the named calls. `at_home`, a method of the type, runs a request there.
/// Payload crosses lanes as a [`Buf`](engine::Buf).
macro_rules! pass_home {
    ($self:ident; $($call:ident),+ $(,)?) => {
        $($crate::pass_on::pass_home! { @$call $self })+
    };
    (@write $self:ident) => { $crate::pass_on::pass_home! { @data $self write -> () } };
    (@write_atomic $self:ident) => { $crate::pass_on::pass_home! { @data $self write_atomic -> () } };
    (@compare_and_write $self:ident) => {
        $crate::pass_on::pass_home! { @data $self compare_and_write -> $crate::CompareOutcome }
    };
    (@data $self:ident $call:ident -> $output:ty) => {
        fn $call(
            &$self,
            at: u64,
            data: ::engine::Payload,
            durability: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$output>> {
            let data = data.into_buf();
            $self.at_home(move |volume| async move { volume.$call(at, data.into(), durability).await })
        }
    };
    (@flush $self:ident) => { $crate::pass_on::pass_home! { @plain $self flush() -> () } };
    (@close $self:ident) => { $crate::pass_on::pass_home! { @plain $self close() -> () } };
    (@discard $self:ident) => { $crate::pass_on::pass_home! { @plain $self discard(at: u64, len: u64) -> () } };
    (@member $self:ident) => {
        $crate::pass_on::pass_home! { @plain $self member(order: $crate::member::Order) -> $crate::member::Report }
    };
    (@allocation $self:ident) => {
        $crate::pass_on::pass_home! { @plain $self allocation(at: u64, len: u64) -> $crate::Allocation }
    };
    (@write_zeroes $self:ident) => {
        $crate::pass_on::pass_home! {
            @plain $self
            write_zeroes(at: u64, len: u64, may_discard: bool, durability: $crate::Durability) -> ()
        }
    };
    (@plain $self:ident $call:ident($($name:ident: $type:ty),*) -> $output:ty) => {
        fn $call(&$self, $($name: $type),*) -> ::engine::LaneFuture<'_, $crate::Result<$output>> {
            $self.at_home(move |volume| async move { volume.$call($($name),*).await })
        }
    };
}
pub(crate) use pass_home;
