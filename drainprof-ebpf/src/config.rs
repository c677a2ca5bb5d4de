//! Numbers that user space sets before the load.

macro_rules! globals {
    ($($(#[$doc:meta])* $getter:ident, $name:ident: $default:expr;)*) => {$(
        #[unsafe(no_mangle)]
        static $name: u32 = $default;

        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $getter() -> u32 {
            // SAFETY: a static is valid; volatile, because the loader changes what the compiler sees.
            unsafe { core::ptr::read_volatile(&raw const $name) }
        }
    )*};
}

globals! {
    /// Slots in `GRANULES`.
    max_granules, MAX_GRANULES: 1;
    /// Slots of counters less one; they are a power of two.
    counter_slot_mask, COUNTER_SLOT_MASK: 0;
    /// Entries of `OBJECT_BUCKETS`.
    object_buckets, OBJECT_BUCKET_COUNT: 1;
    /// Entries of `THREAD_SLOTS` less one; they are a power of two.
    thread_slot_mask, THREAD_SLOT_MASK: 0;
    /// Slots in `SERIES_STATE`.
    max_series, MAX_SERIES: 1;
    /// Slots in `HISTOGRAMS`.
    max_histograms, MAX_HISTOGRAMS: 1;
    /// Slots in `PROBES`.
    max_probes, MAX_PROBES: 1;
    /// Entries of `RULES`, a power of two.
    rule_buckets, RULE_BUCKETS: 1;
    /// Entries of `PATH_HASHES`, and of `SITE_HASHES`; a power of two.
    path_buckets, PATH_BUCKETS: 2;
    /// Entries of `PATH_WORDS`.
    path_words, PATH_WORD_COUNT: 1;
    /// Entries of `WALKS` less one; they are a power of two.
    walk_mask, WALK_MASK: 0;
    /// One of so many pages is in the sample.
    sample, SAMPLE: 1;
    /// What makes the pages in a sample other ones each time.
    sample_seed, SAMPLE_SEED: 0;
    /// 1: send every close and late drain.
    events_wanted, EVENTS_WANTED: 0;
    /// Offset of `pid` in `task:task_newtask`.
    newtask_pid_offset, NEWTASK_PID_OFFSET: 8;
    /// Offset of `clone_flags` in `task:task_newtask`.
    newtask_flags_offset, NEWTASK_FLAGS_OFFSET: 32;
    /// Offset of `old_pid` in `sched:sched_process_exec`.
    exec_old_pid_offset, EXEC_OLD_PID_OFFSET: 16;
    /// Offset of `mm_id` in `kmem:rss_stat`.
    rss_mm_id_offset, RSS_MM_ID_OFFSET: 8;
    /// Offset of `curr` in `kmem:rss_stat`.
    rss_curr_offset, RSS_CURR_OFFSET: 12;
    /// Offset of `member` in `kmem:rss_stat`.
    rss_member_offset, RSS_MEMBER_OFFSET: 16;
    /// Offset of `size` in `kmem:rss_stat`.
    rss_size_offset, RSS_SIZE_OFFSET: 24;
    /// Offset of `__syscall_nr` in the tracepoints of system calls.
    syscall_number_offset, SYSCALL_NUMBER_OFFSET: 8;
    /// 0: growth is reported without call paths.
    growth_paths, GROWTH_PATHS: 1;
    /// 1: growth that the kernel causes is reported with its stack.
    kernel_stacks, KERNEL_STACKS_WANTED: 0;
}
