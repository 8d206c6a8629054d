//! Copying into memory past the CPU's cache. A store to a line that is not in the cache fetches the
//! line first, to keep the bytes around it; for a block that is replaced as a whole that is half of
//! the time and of the traffic. What is written so is read from memory again.
//! And the opposite: a line fetched into the cache before it is needed.

/// Copies `from` into all of `to`, which is as long. Others find it there after [`settle`] only.
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    #[cfg(target_arch = "x86_64")]
    if is_in_lines(to) && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has AVX, as just seen; the slices are equally long, `to` is whole lines.
        return unsafe { copy_lines(to, from) };
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Whether `to` is whole lines of the cache.
#[cfg(target_arch = "x86_64")]
fn is_in_lines(to: &[u8]) -> bool {
    to.as_ptr() as usize % LINE_BYTES == 0 && to.len() % LINE_BYTES == 0
}

/// In assembly, because without optimisation every intrinsic is a call, and the tests' disks crawl.
///
/// # Safety
/// The CPU has AVX, `to` is whole lines and `from` as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_lines(to: &mut [u8], from: &[u8]) {
    if to.is_empty() {
        return;
    }
    let to = to.as_mut_ptr_range();
    // SAFETY: from the first line to the last, two halves each; `to` begins at a multiple of a line.
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

/// Has what was copied be there for all who find out later that it should be. Until then such stores
/// may come after stores that follow them.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Has the CPU bring the line at `address` into its second-level cache; nothing where we do not know
/// how.
pub(super) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint that neither reads nor writes for the program, whatever the address.
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
