//! Memory in large pages, where the system has them.
//!
//! A page that is touched for the first time costs a fault, and on a virtual machine a fault costs microseconds. A page of
//! 2 MiB stands for 512 of 4 KiB. docs/tried.md has what was measured.

/// The size of a large page.
pub const LARGE_PAGE: usize = 2 << 20;

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
