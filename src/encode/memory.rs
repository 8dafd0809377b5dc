//! Memory in large pages, where the system has them.
//!
//! A page that is touched for the first time costs a fault, and on a virtual machine a fault costs microseconds. A page of
//! 2 MiB stands for 512 of 4 KiB. docs/tried.md has what was measured.

use memmap2::MmapMut;
use std::marker::PhantomData;

/// The size of a large page.
const LARGE_PAGE: usize = 2 << 20;

/// Asks for large pages for the memory of `buffer`, used or not. Only advice: nothing changes but time.
pub fn prefer_large_pages<T>(buffer: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        let memory = buffer.as_mut_ptr().cast::<u8>();
        let bytes = buffer.capacity() * size_of::<T>();
        let start = memory.align_offset(LARGE_PAGE);
        if bytes >= start.saturating_add(LARGE_PAGE) {
            let whole = (bytes - start) / LARGE_PAGE * LARGE_PAGE;
            // SAFETY: the range lies inside the memory of the buffer, and MADV_HUGEPAGE leaves its content alone.
            unsafe { libc::madvise(memory.add(start).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = buffer;
}

/// Reads an entry of every cache line. A table that is in no near cache comes there quickly if it is read in order; if
/// each line is first read by a lookup, the lookup waits for memory.
pub fn touch<T: Copy>(table: &[T]) {
    for &entry in table.iter().step_by((64 / size_of::<T>()).max(1)) {
        std::hint::black_box(entry);
    }
}

/// A table of zeros, of whose memory only what is used becomes real. If `dense`, on pages of 2 MiB where the system has
/// them: with pages of 4 KiB a lookup among lines of 16 MiB misses the processor's table of pages as well.
pub struct Table<T> {
    memory: MmapMut,
    /// Where in the memory the first item is: at the start of a large page.
    start: usize,
    len: usize,
    items: PhantomData<T>,
}

/// What may be made of zero bytes.
///
/// # Safety
/// All zeros is a valid value, and it needs no alignment beyond 64 bytes.
pub unsafe trait Zero {}
// SAFETY: an integer.
unsafe impl Zero for u32 {}
// SAFETY: an integer.
unsafe impl Zero for u64 {}

impl<T: Zero> Table<T> {
    /// Of `len` items.
    pub fn new(len: usize, dense: bool) -> Table<T> {
        let bytes = (len * size_of::<T>()).max(1);
        let large = dense && bytes >= LARGE_PAGE;
        let memory = MmapMut::map_anon(bytes + if large { LARGE_PAGE } else { 0 }).expect("memory for a cache");
        let start = if large { memory.as_ptr().align_offset(LARGE_PAGE) } else { 0 };
        #[cfg(target_os = "linux")]
        if large {
            // It is only advice: without large pages everything works as well, somewhat slower.
            let _ = memory.advise_range(memmap2::Advice::HugePage, start, bytes);
        }
        Table { memory, start, len, items: PhantomData }
    }
}

impl<T: Zero> std::ops::Deref for Table<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` items, zeroed or written, in memory that this table owns, at the start of a page.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(self.start).cast(), self.len) }
    }
}

impl<T: Zero> std::ops::DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(self.start).cast(), self.len) }
    }
}
