//! Copies with non-temporal stores, past the CPU cache. An ordinary store to an uncached line first fetches the line,
//! to preserve its other bytes; when a whole block is replaced that costs half of the time and memory traffic. The
//! price is that the next reader fetches the data from memory. Also the opposite: prefetching a line before it is
//! needed.

/// Copies `from` into `to`, which has the same length. Other threads may rely on the data only after [`settle`].
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    #[cfg(target_arch = "x86_64")]
    if is_in_lines(to) && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has AVX, as just checked; the slices are equally long, and `to` is whole cache lines.
        return unsafe { copy_lines(to, from) };
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Whether `to` is whole cache lines.
#[cfg(target_arch = "x86_64")]
fn is_in_lines(to: &[u8]) -> bool {
    to.as_ptr() as usize % LINE_BYTES == 0 && to.len() % LINE_BYTES == 0
}

/// In assembly, because without optimisation every intrinsic is a call, which makes the tests' disks crawl.
///
/// # Safety
/// The CPU has AVX, `to` is whole cache lines, and `from` is as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_lines(to: &mut [u8], from: &[u8]) {
    if to.is_empty() {
        return;
    }
    let to = to.as_mut_ptr_range();
    // SAFETY: from the first line to the last, two halves each; `to` starts on a cache line.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovups {first}, [{from}]",
            "vmovups {second}, [{from} + 32]",
            "vmovntps [{to}], {first}",
            "vmovntps [{to} + 32], {second}",
            "add {from}, 64",
            "add {to}, 64",
            "cmp {to}, {end}",
            "jb 2b",
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.start => _,
            end = in(reg) to.end,
            first = out(ymm_reg) _,
            second = out(ymm_reg) _,
            options(nostack),
        );
    }
}

/// Orders the non-temporal stores before all later stores; without it they may become visible after them.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Prefetches the cache line at `address` into the second-level cache; does nothing on other architectures.
pub(super) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint without architectural effect, valid for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use engine::Buf;

    #[test]
    fn copies_all_wherever_it_begins_and_ends() {
        let from: Vec<u8> = (0..9000).map(|i| (i * 7 % 251) as u8).collect();
        for (at, len) in [(0, 4096), (64, 512), (0, 0), (1, 64), (0, 63), (512, 8192)] {
            for skew in [0, 1, 13] {
                let mut to = Buf::zeroed(9000);
                super::copy(&mut to[at..at + len], &from[skew..skew + len]);
                assert_eq!(to[at..at + len], from[skew..skew + len]);
                assert!(
                    to[..at]
                        .iter()
                        .chain(&to[at + len..])
                        .all(|&byte| byte == 0)
                );
            }
        }
    }
}
