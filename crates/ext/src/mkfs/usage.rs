//! The kinds of use that a volume may be made for: block size and density of inodes (mke2fs.conf(5), `fs_types`).

/// The kind of use that a volume is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The name that the user gives.
    pub name: &'static str,
    /// Bytes in a block.
    pub block_size: u32,
    /// Bytes of the volume for each inode.
    pub bytes_per_inode: u32,
}

const fn usage(name: &'static str, block_size: u32, bytes_per_inode: u32) -> Usage {
    Usage { name, block_size, bytes_per_inode }
}

/// All kinds of use.
pub const USAGES: &[Usage] = &[
    usage("default", 4096, 16 << 10),
    usage("floppy", 1024, 8 << 10),
    usage("small", 1024, 4 << 10),
    usage("big", 4096, 32 << 10),
    usage("huge", 4096, 64 << 10),
    usage("news", 4096, 4 << 10),
    usage("largefile", 4096, 1 << 20),
    usage("largefile4", 4096, 4 << 20),
];

impl Usage {
    /// Returns the kind of use with a name.
    pub fn named(name: &str) -> Option<Usage> {
        USAGES.iter().copied().find(|usage| usage.name == name)
    }

    /// Returns the kind of use that the size suggests.
    pub fn of_size(bytes: u64) -> Usage {
        let name = match bytes {
            size if size < 3 << 20 => "floppy",
            size if size < 512 << 20 => "small",
            size if size < 4 << 40 => "default",
            size if size < 16 << 40 => "big",
            _ => "huge",
        };
        Usage::named(name).expect("the table has it")
    }
}
