//! Mount options of the kernel's ext4 and F2FS drivers, as they stand in fstab.
//!
//! Those that ask for no more than moafs does at any rate are accepted and change nothing. Those that ask for more, or
//! for something else, are refused with the reason. Names and meanings: ext4(5), and the kernel's documentation of
//! F2FS.

/// The answer to an option of the kernel's driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverOption {
    /// moafs does that at any rate, or has nothing to set.
    Accepted,
    /// moafs cannot do that: the reason, and what to give instead.
    Refused(&'static str),
}

/// Accepted options; those that end in `=` with any value.
const ACCEPTED: &[&str] = &[
    // An image file gets a loop device where one is of use.
    "loop",
    // Guarantees that moafs gives, and weaker ones.
    "data=ordered",
    "data=writeback",
    "errors=remount-ro",
    "errors=continue",
    "barrier",
    "barrier=1",
    "nobarrier",
    "barrier=0",
    "journal_checksum",
    "nojournal_checksum",
    "journal_async_commit",
    "block_validity",
    "noblock_validity",
    "auto_da_alloc",
    "auto_da_alloc=1",
    "auto_da_alloc=0",
    "noauto_da_alloc",
    "checkpoint=enable",
    "fsync_mode=posix",
    "fsync_mode=nobarrier",
    // Attributes and groups.
    "user_xattr",
    "acl",
    "nogrpid",
    "sysvgroups",
    "bsddf",
    "noquota",
    // Speed and placement in the driver.
    "delalloc",
    "nodelalloc",
    "dioread_nolock",
    "dioread_lock",
    "nodioread_nolock",
    "discard",
    "nodiscard",
    "init_itable",
    "init_itable=",
    "noinit_itable",
    "inode_readahead_blks=",
    "journal_ioprio=",
    "max_batch_time=",
    "min_batch_time=",
    "mb_optimize_scan=",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "stripe=",
    "mode=adaptive",
    "alloc_mode=",
    "active_logs=",
    "gc_merge",
    "nogc_merge",
    "flush_merge",
    "noflush_merge",
    "extent_cache",
    "noextent_cache",
    "age_extent_cache",
    "inline_data",
    "noinline_data",
    "inline_dentry",
    "noinline_dentry",
    "inline_xattr",
    "noinline_xattr",
    "discard_unit=",
    "memory=",
    "fastboot",
    "data_flush",
];

const KEEPS_NO_QUOTAS: &str = "moafs counts and limits no quotas";
const ALWAYS_REPLAYS: &str = "what an interrupted mount left behind is always taken into account; with `ro` nothing is written to the volume, and \
     F2FS shows its last checkpoint";

/// Refused options with the reasons; those that end in `=` with any value.
const REFUSED: &[(&str, &str)] = &[
    ("data=journal", "moafs writes data before the commit that names them (data=ordered) and never to the journal"),
    ("errors=panic", "moafs makes the volume read-only after an error (errors=remount-ro)"),
    ("noload", ALWAYS_REPLAYS),
    ("norecovery", ALWAYS_REPLAYS),
    ("sb=", "`moafs fsck` finds the superblock's copies and restores it"),
    ("nouser_xattr", "extended attributes are always there"),
    ("noacl", "access control lists are always there"),
    ("grpid", "give directories the set-group-id bit instead"),
    ("bsdgroups", "give directories the set-group-id bit instead"),
    ("minixdf", "statfs always leaves out what the file system's own structures use"),
    ("resuid=", "reserved blocks are for root and for the user that the superblock names"),
    ("resgid=", "reserved blocks are for root and for the group that the superblock names"),
    ("dax", "data always go through the page cache"),
    ("dax=", "data always go through the page cache"),
    ("journal_dev=", "the journal must lie on the volume"),
    ("journal_path=", "the journal must lie on the volume"),
    ("mode=lfs", "`recycle=never` keeps new data out of the holes of used segments"),
    ("checkpoint=disable", "checkpoints are always written"),
    ("fsync_mode=strict", "fsync keeps what POSIX asks for (fsync_mode=posix)"),
    ("quota", KEEPS_NO_QUOTAS),
    ("usrquota", KEEPS_NO_QUOTAS),
    ("grpquota", KEEPS_NO_QUOTAS),
    ("prjquota", KEEPS_NO_QUOTAS),
    ("usrjquota=", KEEPS_NO_QUOTAS),
    ("grpjquota=", KEEPS_NO_QUOTAS),
    ("prjjquota=", KEEPS_NO_QUOTAS),
    ("jqfmt=", KEEPS_NO_QUOTAS),
];

impl DriverOption {
    /// Returns the answer to an option, given with its value. `None` if the kernel's drivers have no such option.
    pub(crate) fn of(option: &str) -> Option<DriverOption> {
        if ACCEPTED.iter().any(|listed| is(listed, option)) {
            return Some(DriverOption::Accepted);
        }
        let refused = REFUSED.iter().find(|(listed, _)| is(listed, option));
        refused.map(|(_, reason)| DriverOption::Refused(reason))
    }
}

/// Tells whether an option is the one listed, or has its name if that stands for any value.
fn is(listed: &str, option: &str) -> bool {
    if listed.ends_with('=') { option.starts_with(listed) } else { option == listed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_files_for_the_kernels_drivers_are_accepted() {
        for list in [
            "errors=remount-ro",
            "discard,errors=remount-ro,commit=30",
            "acl,user_xattr,barrier=1",
            "stripe=128",
            "loop",
        ] {
            for option in list.split(',').filter(|option| !option.starts_with("commit=")) {
                assert_eq!(DriverOption::of(option), Some(DriverOption::Accepted), "{option}");
            }
        }
    }

    #[test]
    fn stronger_or_other_wishes_are_refused_with_the_reason() {
        for (option, words) in
            [("data=journal", "data=ordered"), ("usrjquota=aquota.user", "quotas"), ("sb=8193", "fsck")]
        {
            let Some(DriverOption::Refused(reason)) = DriverOption::of(option) else { panic!("{option}") };
            assert!(reason.contains(words), "{reason}");
        }
    }

    #[test]
    fn an_option_of_no_driver_is_not_known() {
        for option in ["", "=", "stripe", "data=", "barriers", "errors=remount"] {
            assert_eq!(DriverOption::of(option), None, "{option}");
        }
    }

    #[test]
    fn no_option_is_both_accepted_and_refused() {
        assert!(REFUSED.iter().all(|(refused, _)| !ACCEPTED.contains(refused)));
    }
}
