//! Every issue that the checker can find, as text and as data.

use serde::Serialize;

use crate::format::{BlockNo, GroupNo, InodeNo, Structure};

/// The severity of an issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is lost and nothing can get lost.
    Warning,
    /// The volume must not be written before it is repaired.
    Error,
    /// The check cannot go on.
    Fatal,
}

/// Numbers from `start` to `end`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first number of the range.
    pub start: u64,
    /// The last number of the range.
    pub end: u64,
}

/// The bitmap that an issue is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bitmap {
    /// The block bitmap of a group.
    Block,
    /// The inode bitmap of a group.
    Inode,
}

/// The count that an issue is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// The number of free blocks.
    FreeBlocks,
    /// The number of free inodes.
    FreeInodes,
    /// The number of directories.
    Directories,
}

/// The owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Superblocks, descriptors, bitmaps, inode tables, and their reserve.
    Metadata,
    /// The block is an attribute block.
    Attributes,
    /// The map of an inode.
    Inode(InodeNo),
}

/// An error of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "issue", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as the text prints them")]
pub enum Issue {
    /// The superblock cannot be used, but a copy can.
    SuperblockDamaged { problem: String, copy: BlockNo },
    /// A volume of revision 0, which has no features, has some.
    RevisionFeatures { compat: u32, incompat: u32, ro_compat: u32 },
    /// A field of the superblock is impossible; the volume can be read all the same.
    SuperblockField { field: &'static str, stored: u64, should: u64 },
    /// A descriptor cannot be used.
    DescriptorDamaged { group: GroupNo, problem: String, copy: Option<BlockNo> },
    /// A descriptor has flags that this volume cannot have.
    DescriptorFlags { group: GroupNo, flags: u16, itable_unused: u32 },
    /// The checksum of a structure that makes sense is wrong.
    Checksum { structure: Structure, problem: String },
    /// The journal holds transactions that a repair, or a mount, writes home; the check shows what they leave.
    JournalNotReplayed { transactions: u32 },
    /// The journal holds transactions, and the superblock says that there is nothing to replay.
    JournalNotEmpty { start: u32 },
    /// The journal cannot be replayed behind its first transactions, or at all; a repair drops what it holds there.
    JournalDamaged { problem: String, transactions: u32 },
    /// The superblock does not lead to the journal, but the copy of its inode does, or the reserved inode itself.
    JournalInode { problem: String },
    /// The last user of the journal gave up with an error.
    JournalError { errno: i32 },
    /// The orphan file cannot be used.
    OrphanFile { problem: String },
    /// The orphan file holds deleted or truncated inodes, or the superblock says so.
    OrphanFileInUse { count: u32 },
    /// A name leads to an inode in a part of the table that was never used, as the descriptor says.
    HiddenInode { group: GroupNo, directory: InodeNo, name: String, inode: InodeNo },
    /// An inode is in use in a part of the table that was never used, as the descriptor says; no name may lead to it.
    HiddenUnnamed { group: GroupNo, inode: InodeNo },
    /// Blocks are in use in a group whose block bitmap was never written, as its descriptor says.
    BlockBitmapUninit { group: GroupNo },
    /// An inode is mapped by extents, and lacks the flag that says so.
    ExtentsFlag { inode: InodeNo },
    /// An inode is mapped by extents, and the volume lacks the feature.
    ExtentsFeature { inode: InodeNo },
    /// A node of an extent tree breaks a rule; without a block it is the root.
    ExtentTree { inode: InodeNo, block: Option<BlockNo>, problem: String },
    /// A block of names has no tail for its checksum.
    LeafTail { directory: InodeNo, lbn: u64 },
    /// There are unlinked inodes to be released.
    OrphanList { head: u32 },
    /// The root's inode is no directory.
    RootNotDirectory,
    /// The superblock's first inode that is not reserved is not inode 11.
    FirstInode { stored: u32 },
    /// The volume has the feature of a journal, but no journal that can be used.
    Journal { problem: String },
    /// A reserved inode has a type that it cannot have.
    ReservedInode { inode: InodeNo, mode: u16 },
    /// The inode that owns the descriptor table's reserve does not own it.
    ResizeInode { problem: String },
    /// A deleted inode has no deletion time.
    InodeZeroDtime { inode: InodeNo },
    /// A deleted inode is part of a list of orphans that is no longer one.
    OrphanLeft { inode: InodeNo },
    /// An inode in use has a deletion time.
    InodeDtimeSet { inode: InodeNo },
    /// An inode's mode is no file type.
    InodeBadMode { inode: InodeNo, mode: u16 },
    /// An inode has flags that this volume cannot have.
    InodeFlags { inode: InodeNo, flags: u32 },
    /// Fields that must be zero are not.
    InodeObsoleteFields { inode: InodeNo },
    /// The length of an inode's extra part is impossible.
    InodeExtraSize { inode: InodeNo, extra_isize: u16 },
    /// The attributes inside an inode are damaged.
    InodeXattrs { inode: InodeNo, problem: String },
    /// An attribute block is damaged, or cannot be one.
    XattrBlock { inode: InodeNo, block: BlockNo, problem: String },
    /// An attribute's hash is wrong.
    XattrHash { inode: InodeNo, block: Option<BlockNo> },
    /// Attribute blocks exist, but the feature ext_attr is not set.
    XattrFeature { inode: InodeNo },
    /// An attribute block counts its inodes wrongly.
    XattrRefcount { block: BlockNo, stored: u32, counted: u32 },
    /// A device, pipe or socket has a size.
    SpecialFileSize { inode: InodeNo, size: u64 },
    /// A symbolic link has no usable target.
    SymlinkInvalid { inode: InodeNo },
    /// A pointer leaves the volume or names metadata.
    IllegalBlock { inode: InodeNo, lbn: u64, level: u8, block: BlockNo },
    /// An inode claims a block that has another owner; the repair gives it a copy.
    MultiplyClaimed { inode: InodeNo, lbn: u64, level: u8, block: BlockNo, holder: Holder },
    /// A map names one of its indirect blocks a second time.
    MapLoop { inode: InodeNo, lbn: u64, level: u8, block: BlockNo },
    /// More blocks have several claims than the repair can keep in memory.
    TooManyClaims,
    /// There is no room for copies of the blocks that have several claims.
    NoRoomToCopy { needed: u64, free: u64 },
    /// An inode's `i_blocks` is wrong.
    BlocksCount { inode: InodeNo, stored: u64, counted: u64 },
    /// An inode's `i_size` is wrong.
    Size { inode: InodeNo, stored: u64, should: u64 },
    /// A directory has holes.
    DirectoryHole { inode: InodeNo, blocks: u64 },
    /// A directory has no block.
    DirectoryEmpty { inode: InodeNo },
    /// A file is longer than the features allow.
    LargeFileFeature { inode: InodeNo },
    /// An inode has the index flag, but is no directory, or the volume lacks the feature dir_index.
    IndexUnsupported { inode: InodeNo },
    /// A directory's index is damaged.
    IndexDamaged { inode: InodeNo, problem: String },
    /// A directory's block is damaged from an entry on.
    RecordDamaged { directory: InodeNo, lbn: u64, offset: usize, problem: String },
    /// A directory does not start with `.`.
    DotMissing { directory: InodeNo },
    /// `.` names another inode.
    DotWrong { directory: InodeNo, stored: InodeNo },
    /// The bytes behind `.` or `..` in its record are not zero.
    DotPadding { directory: InodeNo },
    /// A directory's second entry is not `..`.
    DotDotMissing { directory: InodeNo },
    /// `..` is not the parent.
    DotDotWrong { directory: InodeNo, stored: InodeNo, parent: InodeNo },
    /// An entry has an impossible inode number or name.
    EntryIllegal { directory: InodeNo, lbn: u64, problem: String },
    /// An entry is a second `.` or `..`.
    EntryDotAgain { directory: InodeNo, name: String },
    /// An entry names an inode that is not in use.
    EntryUnused { directory: InodeNo, name: String, inode: InodeNo },
    /// An entry names an inode that has no names.
    EntryReserved { directory: InodeNo, name: String, inode: InodeNo },
    /// A directory has a second name.
    EntryDirectoryAgain { directory: InodeNo, name: String, inode: InodeNo },
    /// An entry's type is not the inode's.
    EntryType { directory: InodeNo, name: String, stored: u8, should: u8 },
    /// A name occurs twice in a directory.
    EntryDuplicate { directory: InodeNo, name: String },
    /// A directory that the root does not lead to.
    UnconnectedDirectory { inode: InodeNo },
    /// The name `lost+found` leads to something that is no directory.
    LostFoundNotDirectory { inode: InodeNo },
    /// There is no lost+found directory for inodes without a name.
    LostFoundMissing,
    /// An inode in use has no name.
    UnattachedInode { inode: InodeNo, size: u64 },
    /// An empty file has no name.
    UnattachedEmpty { inode: InodeNo },
    /// The link count is not the number of names.
    LinkCount { inode: InodeNo, stored: u16, counted: u32 },
    /// A crash of moafs interrupted a rename: the file has the old name beside the new one.
    RenameInterrupted { inode: InodeNo, directory: InodeNo, name: String },
    /// An inode still has the temporary name that it got while a crash of moafs interrupted an exchange of its own.
    ExchangeInterrupted { inode: InodeNo, directory: InodeNo, name: String },
    /// A bitmap says "used" for blocks or inodes that are not in use.
    Leaked { bitmap: Bitmap, group: GroupNo, count: u32, first: Span },
    /// A bitmap says "free" for blocks or inodes that are in use.
    UsedButFree { bitmap: Bitmap, group: GroupNo, count: u32, first: Span },
    /// Bits behind a bitmap's end are not set.
    Padding { bitmap: Bitmap, group: GroupNo },
    /// A descriptor counts wrongly.
    GroupCount { group: GroupNo, count: Count, stored: u32, counted: u32 },
    /// The superblock counts wrongly.
    TotalCount { count: Count, stored: u64, counted: u64 },
}

impl Issue {
    /// Returns the severity of the issue.
    pub fn severity(&self) -> Severity {
        match self {
            // Type 0 says that the type is not known: readers look into the inode.
            Issue::TotalCount { .. }
            | Issue::EntryType { stored: 0, .. }
            | Issue::JournalNotReplayed { .. }
            | Issue::RenameInterrupted { .. }
            | Issue::ExchangeInterrupted { .. } => Severity::Warning,
            Issue::DescriptorDamaged { copy: None, .. } => Severity::Fatal,
            _ => Severity::Error,
        }
    }

    /// Returns true if a repair cannot lose anything: `fsck -p` does it without asking.
    pub fn is_safe_to_repair(&self) -> bool {
        // A right superblock is on the disk in copies; in trees and attributes a wrong checksum may hide a lost write.
        if let Issue::Checksum { structure, .. } = self {
            let kept =
                matches!(structure, Structure::Superblock | Structure::ExtentNode { .. } | Structure::XattrBlock(_));
            return !kept;
        }
        matches!(
            self,
            Issue::OrphanList { .. }
                | Issue::OrphanLeft { .. }
                | Issue::DescriptorFlags { .. }
                | Issue::JournalNotReplayed { .. }
                | Issue::JournalInode { .. }
                | Issue::JournalError { .. }
                | Issue::OrphanFileInUse { .. }
                | Issue::HiddenInode { .. }
                | Issue::HiddenUnnamed { .. }
                | Issue::BlockBitmapUninit { .. }
                | Issue::ExtentsFlag { .. }
                | Issue::ExtentsFeature { .. }
                | Issue::LeafTail { .. }
                | Issue::XattrFeature { .. }
                | Issue::InodeZeroDtime { .. }
                | Issue::InodeDtimeSet { .. }
                | Issue::InodeObsoleteFields { .. }
                | Issue::XattrHash { .. }
                | Issue::XattrRefcount { .. }
                | Issue::SpecialFileSize { .. }
                | Issue::BlocksCount { .. }
                | Issue::Size { .. }
                // A journal that the superblock does not name.
                | Issue::ReservedInode { inode: InodeNo::JOURNAL, .. }
                | Issue::LargeFileFeature { .. }
                | Issue::IndexUnsupported { .. }
                | Issue::DotPadding { .. }
                | Issue::DotDotWrong { .. }
                | Issue::EntryUnused { .. }
                | Issue::EntryType { .. }
                | Issue::UnattachedEmpty { .. }
                | Issue::LinkCount { .. }
                | Issue::RenameInterrupted { .. }
                | Issue::ExchangeInterrupted { .. }
                | Issue::Leaked { .. }
                | Issue::UsedButFree { .. }
                | Issue::Padding { .. }
                | Issue::GroupCount { .. }
                | Issue::TotalCount { .. }
        )
    }
}

impl std::fmt::Display for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Bitmap::Block => "block",
            Bitmap::Inode => "inode",
        })
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Count::FreeBlocks => "free blocks",
            Count::FreeInodes => "free inodes",
            Count::Directories => "directories",
        })
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Metadata => f.write_str("the metadata of its group"),
            Holder::Attributes => f.write_str("extended attributes"),
            Holder::Inode(inode) => write!(f, "inode {inode}"),
        }
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.start == self.end { write!(f, "{}", self.start) } else { write!(f, "{} to {}", self.start, self.end) }
    }
}

impl std::fmt::Display for Issue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use Issue::*;
        match self {
            SuperblockDamaged { problem, copy } => {
                write!(f, "the superblock is damaged ({problem}); block {copy} has a copy")
            }
            RevisionFeatures { compat, incompat, ro_compat } => write!(
                f,
                "superblock: revision 0 with features {compat:#x}, {incompat:#x}, {ro_compat:#x}, should be revision 1 or none"
            ),
            SuperblockField { field, stored, should } => {
                write!(f, "superblock: {field} is {stored}, should be {should}")
            }
            DescriptorDamaged { group, problem, copy: Some(copy) } => {
                write!(f, "the descriptor of group {group} is damaged ({problem}); block {copy} has a copy")
            }
            DescriptorDamaged { group, problem, copy: None } => {
                write!(f, "the descriptor of group {group} is damaged ({problem}) and no copy is better")
            }
            DescriptorFlags { group, flags, itable_unused } => write!(
                f,
                "the descriptor of group {group} has flags {flags:#x} and {itable_unused} unused inodes, which the group \
                 cannot have"
            ),
            Checksum { structure, problem } => write!(f, "{structure}: {problem}"),
            JournalNotReplayed { transactions } => write!(
                f,
                "the journal holds {transactions} transactions that are not on the volume yet; the check shows the volume with \
                 them"
            ),
            JournalNotEmpty { start } => write!(
                f,
                "the journal holds changes (s_start is {start}), but the superblock says that there is nothing to replay"
            ),
            JournalDamaged { problem, transactions: 0 } => {
                write!(f, "the journal cannot be replayed, what it holds is lost with a repair: {problem}")
            }
            JournalDamaged { problem, transactions } => write!(
                f,
                "the journal can be replayed up to its transaction {transactions}, what it holds behind that is lost \
                 with a repair: {problem}"
            ),
            JournalInode { problem } => {
                write!(f, "the journal cannot be found ({problem}), but the superblock has a copy of its inode")
            }
            JournalError { errno } => write!(f, "the last user of the journal gave up with error {errno}"),
            OrphanFile { problem } => write!(f, "the orphan file cannot be used: {problem}"),
            OrphanFileInUse { count: 0 } => {
                write!(f, "the superblock says that the orphan file is in use (orphan_present), but it is empty")
            }
            OrphanFileInUse { count } => {
                write!(f, "the orphan file holds {count} inodes that are to be deleted or truncated")
            }
            HiddenUnnamed { group, inode } => {
                write!(f, "inode {inode} is in use, but the descriptor of group {group} says that it never was")
            }
            HiddenInode { group, directory, name, inode } => write!(
                f,
                "entry '{name}' in directory {directory} names inode {inode}, in a part of the table that group {group} \
                 never used"
            ),
            BlockBitmapUninit { group } => {
                write!(f, "group {group} has blocks in use, but the flag that its block bitmap was never written")
            }
            ExtentsFlag { inode } => write!(f, "inode {inode} is mapped by extents, but lacks the flag for it"),
            ExtentsFeature { inode } => {
                write!(f, "inode {inode} is mapped by extents, but the feature extent is not set")
            }
            ExtentTree { inode, block: Some(block), problem } => {
                write!(f, "the extent tree of inode {inode}, block {block}: {problem}")
            }
            ExtentTree { inode, block: None, problem } => write!(f, "the extent tree of inode {inode}: {problem}"),
            LeafTail { directory, lbn } => {
                write!(f, "directory {directory}, block {lbn} has no room for its checksum")
            }
            XattrFeature { inode } => {
                write!(f, "inode {inode} has an attribute block, but the feature ext_attr is not set")
            }
            OrphanList { head } => {
                write!(f, "the orphan list holds deleted inodes that are not freed yet, first inode {head}")
            }
            RootNotDirectory => write!(f, "the root inode is not a directory"),
            FirstInode { stored } => write!(f, "superblock: s_first_ino is {stored}, should be 11"),
            Journal { problem } => {
                write!(
                    f,
                    "the journal is unusable: {problem}; without it the volume is ext2 (`tune2fs -j` makes a new one)"
                )
            }
            ReservedInode { inode, mode } => {
                write!(f, "reserved inode {inode} has mode {mode:#o}, or other fields that it cannot have")
            }
            ResizeInode { problem } => write!(f, "the resize inode is wrong: {problem}"),
            InodeZeroDtime { inode } => write!(f, "deleted inode {inode} has no deletion time"),
            OrphanLeft { inode } => write!(f, "deleted inode {inode} is part of a broken list of orphans"),
            InodeDtimeSet { inode } => write!(f, "inode {inode} is in use, but has a deletion time"),
            InodeBadMode { inode, mode } => write!(f, "inode {inode} has mode {mode:#o}, which is no file type"),
            InodeFlags { inode, flags } => {
                write!(f, "inode {inode} has flags {flags:#x}, which this volume cannot have")
            }
            InodeObsoleteFields { inode } => write!(f, "inode {inode} has bytes in obsolete fields, should be 0"),
            InodeExtraSize { inode, extra_isize } => {
                write!(f, "inode {inode} has i_extra_isize {extra_isize}, which this volume cannot have")
            }
            InodeXattrs { inode, problem } => write!(f, "the attributes inside inode {inode} are damaged: {problem}"),
            XattrBlock { inode, block, problem } => {
                write!(f, "attribute block {block} of inode {inode} is unusable: {problem}")
            }
            XattrHash { inode, block: Some(block) } => {
                write!(f, "attribute block {block} of inode {inode} has a wrong hash")
            }
            XattrHash { inode, block: None } => write!(f, "an attribute inside inode {inode} has a wrong hash"),
            XattrRefcount { block, stored, counted } => {
                write!(f, "attribute block {block} has reference count {stored}, should be {counted}")
            }
            SpecialFileSize { inode, size } => write!(f, "special file {inode} has i_size {size}, should be 0"),
            SymlinkInvalid { inode } => write!(f, "symbolic link {inode} has no usable target"),
            IllegalBlock { inode, lbn, level, block } => {
                write!(f, "inode {inode} has the illegal pointer {block} at file block {lbn} (level {level})")
            }
            MultiplyClaimed { inode, lbn, level, block, holder } => {
                write!(f, "inode {inode}: file block {lbn} (level {level}) is block {block}, which belongs to {holder}")
            }
            MapLoop { inode, lbn, level, block } => {
                write!(
                    f,
                    "inode {inode}: file block {lbn} (level {level}) is block {block}, an indirect block of this inode already"
                )
            }
            TooManyClaims => write!(f, "too many blocks have more than one owner: they cannot be repaired"),
            NoRoomToCopy { needed, free } => {
                write!(f, "{needed} free blocks are needed to copy blocks with more than one owner, found {free}")
            }
            BlocksCount { inode, stored, counted } => {
                write!(f, "inode {inode} has i_blocks {stored}, should be {counted}")
            }
            Size { inode, stored, should } => write!(f, "inode {inode} has i_size {stored}, should be {should}"),
            DirectoryHole { inode, blocks } => write!(f, "directory {inode} has holes between its {blocks} blocks"),
            DirectoryEmpty { inode } => write!(f, "directory {inode} has no block"),
            LargeFileFeature { inode } => {
                write!(f, "inode {inode} has 2 GiB or more, but the feature large_file is not set")
            }
            IndexUnsupported { inode } => {
                write!(f, "inode {inode} has the index flag, but is no directory, or the feature dir_index is not set")
            }
            IndexDamaged { inode, problem } => write!(f, "the index of directory {inode} is damaged: {problem}"),
            RecordDamaged { directory, lbn, problem, .. } => {
                write!(f, "directory {directory}, block {lbn} is damaged: {problem}")
            }
            DotMissing { directory } => write!(f, "directory {directory} does not start with '.'"),
            DotWrong { directory, stored } => {
                write!(f, "'.' in directory {directory} names inode {stored}, should be {directory}")
            }
            DotPadding { directory } => write!(f, "'.' or '..' in directory {directory} is not followed by zeros"),
            DotDotMissing { directory } => write!(f, "directory {directory} has no '..'"),
            DotDotWrong { directory, stored, parent } => {
                write!(f, "'..' in directory {directory} names inode {stored}, should be {parent}")
            }
            EntryIllegal { directory, lbn, problem } => write!(f, "directory {directory}, block {lbn}: {problem}"),
            EntryDotAgain { directory, name } => write!(f, "directory {directory} has a second '{name}'"),
            EntryUnused { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} names inode {inode}, which is not in use")
            }
            EntryReserved { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} names reserved inode {inode}")
            }
            EntryDirectoryAgain { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} is a second name of directory {inode}")
            }
            EntryType { directory, name, stored, should } => {
                write!(f, "entry '{name}' in directory {directory} has type {stored}, should be {should}")
            }
            EntryDuplicate { directory, name } => write!(f, "directory {directory} has '{name}' twice"),
            UnconnectedDirectory { inode } => write!(f, "directory {inode} is not connected to the root"),
            LostFoundNotDirectory { inode } => {
                write!(f, "entry 'lost+found' in directory 2 names inode {inode}, should be a directory")
            }
            LostFoundMissing => write!(f, "/lost+found is missing, and the repair needs it"),
            UnattachedInode { inode, size } => write!(f, "inode {inode} ({size} bytes) has no name"),
            UnattachedEmpty { inode } => write!(f, "inode {inode}, an empty file, has no name"),
            LinkCount { inode, stored, counted } => {
                write!(f, "inode {inode} has link count {stored}, should be {counted}")
            }
            ExchangeInterrupted { inode, directory, name } => write!(
                f,
                "a crash interrupted an exchange of names: inode {inode} has its temporary name '{name}' in directory \
                 {directory}"
            ),
            RenameInterrupted { inode, directory, name } => {
                write!(
                    f,
                    "entry '{name}' in directory {directory} is the old name of inode {inode}, which a crash left"
                )
            }
            Leaked { bitmap, group, count, first } => {
                write!(
                    f,
                    "the {bitmap} bitmap of group {group} has {count} marked used that are not in use, first {first}"
                )
            }
            UsedButFree { bitmap, group, count, first } => {
                write!(f, "the {bitmap} bitmap of group {group} has {count} marked free that are in use, first {first}")
            }
            Padding { bitmap, group } => write!(f, "the {bitmap} bitmap of group {group} is not padded with ones"),
            GroupCount { group, count, stored, counted } => {
                write!(f, "the descriptor of group {group} counts {stored} {count}, should be {counted}")
            }
            TotalCount { count, stored, counted } => {
                write!(f, "the superblock counts {stored} {count}, should be {counted}")
            }
        }
    }
}
