//! Everything the checker can find, in words and as data.

use serde::Serialize;

use crate::format::{BlkAddr, Log, Nid, Segno};

/// The severity of an issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Legal, but not how the format means it: programs that had to recycle segments leave it.
    Note,
    /// Odd, or what a power cut leaves: nothing is lost and nothing can get lost.
    Warning,
    /// Leak only: space is kept or counted without an owner, and no file is touched by it.
    Leak,
    /// The volume must not be written before it is repaired.
    Error,
    /// The check cannot go on.
    Fatal,
}

/// A count of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// Blocks in use, promised ones included.
    ValidBlocks,
    /// Nodes in use, inodes included.
    ValidNodes,
    /// Inodes in use, the root included.
    ValidInodes,
    /// Segments without a valid block that no log stands in.
    FreeSegments,
}

/// The owner of a block, as a summary entry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlockOwner {
    /// The node that holds the block's address; a node's block is its own.
    pub nid: Nid,
    /// The version of that node's NAT entry; 0 for a node's block.
    pub version: u8,
    /// The index of the block's address in the node; 0 for a node's block.
    pub offset: u16,
}

/// Something that is wrong with a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "issue", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as the text prints them")]
pub enum Issue {
    /// A superblock copy cannot be used, but the other can.
    SuperblockDamaged { copy: u8, problem: String },
    /// Both superblock copies can be used, but say different things.
    SuperblocksDiffer { byte: usize },
    /// A checkpoint newer than the one in use was cut off while it was written.
    PackTorn { pack: u8, version: u64, used: u64 },
    /// The newest checkpoint was finished, but its contents are damaged: the older one is no longer true.
    PackDamaged { pack: u8, version: u64, used: u64, problem: String },
    /// A checkpoint pack cannot be used.
    PackUnusable { pack: u8, problem: String },
    /// No checkpoint pack can be used.
    NoCheckpoint,
    /// The checkpoint carries marks: of an error, for a check, of checkpoints that are switched
    /// off, or of a resize.
    Marked { marks: String },
    /// The hint where to look for a free node id is beyond the table.
    NextFreeNid { stored: u32, limit: u32 },
    /// The reserve for cleaning is impossible: with the metadata it makes up the whole volume, or less than any has.
    ReservedSegments { stored: u32, least: u32, most: u32 },
    /// A quota file that the superblock names is no regular file.
    QuotaInode { index: usize, inode: Nid, problem: &'static str },
    /// A segment's entry is damaged.
    SitEntry { segment: Segno, problem: String },
    /// A segment's entry in the table is damaged, but a newer one in the journal replaces it.
    SitSuperseded { segment: Segno, problem: String },
    /// A log's segment has another type.
    CurrentType { log: Log, segment: Segno, stored: Log },
    /// A log's next block, or one behind it that must be free, is in use.
    CurrentUsed { log: Log, segment: Segno, next: u16, used: u16 },
    /// Nodes written since the checkpoint do not form a chain.
    Chain { block: BlkAddr, problem: String },
    /// A node that an fsync wrote since the checkpoint cannot be replayed, so the volume cannot be mounted for writing.
    ChainNode { block: BlkAddr, problem: String },
    /// An entry of the node and the meta inode, which have no node, is not what it always is.
    NatReserved { nid: Nid },
    /// Node 0, which stands for no node, has an address.
    NatZero { stored: BlkAddr },
    /// A node's entry in the table is damaged, but a newer one in the journal replaces it.
    NatSuperseded { nid: Nid, block: BlkAddr },
    /// A node's address does not lie in the main area.
    NatAddress { nid: Nid, block: BlkAddr },
    /// A node's NAT entry names an inode that does not exist.
    NatOwner { nid: Nid, inode: Nid },
    /// The block at a node's address is another node.
    NodeFooter { nid: Nid, block: BlkAddr, problem: String },
    /// A node's mark of belonging to no directory is wrong.
    NodeCold { nid: Nid, stored: bool },
    /// A node says that it was written after the checkpoint it belongs to.
    NodeVersion { nid: Nid, stored: u64, checkpoint: u64 },
    /// The next block in a node's log, as its footer names it, lies outside of the main area.
    NodeNext { nid: Nid, next: BlkAddr },
    /// A node id in an inode or an indirect node cannot be followed.
    NodePointer { inode: Nid, nid: Nid, offset: u32, problem: String },
    /// A node in use that its inode does not lead to.
    NodeUnreachable { nid: Nid, inode: Nid },
    /// An inode's fields are impossible.
    InodeDamaged { inode: Nid, problem: String },
    /// An inode's checksum is wrong.
    InodeChecksum { inode: Nid, problem: String },
    /// An inode uses a feature that the volume does not have.
    InodeFeature { inode: Nid, feature: &'static str },
    /// The number of words that an inode keeps for its attributes is impossible.
    InlineXattrSize { inode: Nid, stored: u16, most: u16 },
    /// The word before inline contents must be 0.
    InlineReserved { inode: Nid, stored: u32 },
    /// There are inline data, but the mark for them is missing.
    InlineUnmarked { inode: Nid },
    /// An inode that has no blocks of its own has addresses or nodes.
    UnexpectedPointers { inode: Nid },
    /// The cached extent is not what the addresses say.
    Extent { inode: Nid, lbn: u32, block: BlkAddr, blocks: u32 },
    /// `i_blocks` is not the number of blocks that belong to the inode.
    BlocksCount { inode: Nid, stored: u64, counted: u64 },
    /// `i_size` is too small for a directory's blocks.
    SizeTooSmall { inode: Nid, stored: u64, least: u64 },
    /// A file has blocks behind its end, and no mark that says so.
    BlocksBeyondEnd { inode: Nid, stored: u64, lbn: u64 },
    /// A symbolic link has no usable target.
    SymlinkInvalid { inode: Nid, problem: String },
    /// The attribute area of an inode does not start with its magic number: `sload.f2fs` leaves
    /// addresses there, and readers take it for no attributes.
    XattrMagic { inode: Nid, stored: u32 },
    /// An inode's attributes are damaged.
    Xattrs { inode: Nid, problem: String },
    /// An address lies outside of the main area.
    IllegalBlock { inode: Nid, lbn: u64, block: BlkAddr },
    /// A block already belongs to another file block or node.
    MultiplyClaimed { inode: Nid, nid: Nid, block: BlkAddr },
    /// A block is in use, but its segment's map says that it is free.
    UsedButFree { inode: Nid, block: BlkAddr },
    /// A segment for nodes holds data, or the other way round.
    SegmentClass { segment: Segno, stored: Log, block: BlkAddr },
    /// Nodes, or blocks of directories, lie in a segment of another temperature.
    Temperature { segment: Segno, stored: Log, blocks: u32 },
    /// A section has segments of nodes and segments of data.
    MixedSection { section: u32, nodes: u32, data: u32 },
    /// A segment's summary says that it is of nodes, or of data, and it is not.
    SummaryKind { segment: Segno, nodes: bool },
    /// A block's summary entry names another owner.
    Summary { segment: Segno, block: BlkAddr, stored: BlockOwner, should: BlockOwner },
    /// Entries of a directory are damaged.
    EntriesDamaged { directory: Nid, lbn: u64, problem: String },
    /// `.` or `..` is missing.
    DotMissing { directory: Nid, name: &'static str },
    /// `.` or `..` where it does not belong.
    DotMisplaced { directory: Nid, name: &'static str, lbn: u64 },
    /// `.` names another inode.
    DotWrong { directory: Nid, stored: Nid },
    /// `..` is not the parent.
    DotDotWrong { directory: Nid, stored: Nid, parent: Nid },
    /// The parent that a directory carries is not the one it has.
    ParentWrong { directory: Nid, stored: Nid, parent: Nid },
    /// An entry's hash is not that of its name.
    EntryHash { directory: Nid, name: String, stored: u32, should: u32 },
    /// An entry lies where a lookup does not search for it.
    EntryMisplaced { directory: Nid, name: String, lbn: u64 },
    /// An entry names an inode that is not in use.
    EntryUnused { directory: Nid, name: String, inode: Nid },
    /// An entry names a reserved inode, which never has a name.
    EntryReserved { directory: Nid, name: String, inode: Nid },
    /// An entry's type is not the inode's.
    EntryType { directory: Nid, name: String, inode: Nid },
    /// A directory has a second name.
    EntryDirectoryAgain { directory: Nid, name: String, inode: Nid },
    /// A name occurs twice in a directory.
    EntryDuplicate { directory: Nid, name: String },
    /// The name or the parent that a file with one name carries is not its present one.
    NameStale { inode: Nid, directory: Nid, name: String },
    /// A directory that leads to itself and not to the root.
    DirectoryLoop { inode: Nid },
    /// The root's inode is not a directory.
    RootNotDirectory,
    /// The link count is not the number of names.
    LinkCount { inode: Nid, stored: u32, counted: u32 },
    /// An inode in use has no name and is no orphan.
    Unattached { inode: Nid },
    /// An orphan is not in use.
    OrphanUnused { inode: Nid },
    /// An orphan has a name.
    OrphanNamed { inode: Nid, names: u32 },
    /// A segment's map says "used" for blocks without an owner.
    Leaked { segment: Segno, blocks: u32, first: BlkAddr },
    /// The checkpoint counts wrongly.
    Count { count: Count, stored: u64, counted: u64 },
}

impl Issue {
    /// Returns the severity of the issue.
    pub fn severity(&self) -> Severity {
        use Issue::*;
        match self {
            NoCheckpoint => Severity::Fatal,
            Temperature { .. } | MixedSection { .. } => Severity::Note,
            PackTorn { .. } | PackUnusable { .. } | Marked { .. } | NextFreeNid { .. } | Chain { .. } => {
                Severity::Warning
            }
            NodeCold { .. } | NodeVersion { .. } | NodeNext { .. } => Severity::Warning,
            NameStale { .. } | BlocksBeyondEnd { .. } | XattrMagic { .. } => Severity::Warning,
            Leaked { .. } | Count { .. } | NodeUnreachable { .. } | Unattached { .. } => Severity::Leak,
            _ => Severity::Error,
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Count::ValidBlocks => "blocks in use",
            Count::ValidNodes => "nodes in use",
            Count::ValidInodes => "inodes in use",
            Count::FreeSegments => "free segments",
        })
    }
}

impl std::fmt::Display for BlockOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "address {} of node {} (version {})", self.offset, self.nid, self.version)
    }
}

impl std::fmt::Display for Issue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use Issue::*;
        match self {
            SuperblockDamaged { copy, problem } => write!(f, "superblock copy {copy} cannot be used: {problem}"),
            SuperblocksDiffer { byte } => write!(f, "the superblock copies differ, first in byte {byte}"),
            PackTorn { pack, version, used } => write!(
                f,
                "checkpoint pack {pack}, version {version:#x}, is incomplete: version {used:#x} is used instead"
            ),
            PackDamaged { pack, version, used, problem } => write!(
                f,
                "checkpoint pack {pack}, version {version:#x}, is the newest, but is damaged: {problem}; \
                 the rest is judged by version {used:#x}"
            ),
            PackUnusable { pack, problem } => write!(f, "checkpoint pack {pack} cannot be used: {problem}"),
            NoCheckpoint => write!(f, "there is no usable checkpoint"),
            Marked { marks } => write!(f, "the checkpoint has flags set: {marks}"),
            NextFreeNid { stored, limit } => {
                write!(f, "the checkpoint has next_free_nid {stored}, should be at most {limit}")
            }
            ReservedSegments { stored, least, most } => {
                write!(f, "the checkpoint's rsvd_segment_count is {stored}, should be {least} to {most}")
            }
            QuotaInode { index, inode, problem } => write!(
                f,
                "the superblock's qf_ino[{index}] is inode {inode}, which {problem}, should be 0 or a regular file"
            ),
            SitEntry { segment, problem } => write!(f, "the SIT entry of segment {segment} is damaged: {problem}"),
            SitSuperseded { segment, problem } => {
                write!(f, "the SIT entry of segment {segment}, which the journal replaces, is damaged: {problem}")
            }
            CurrentType { log, segment, stored } => {
                write!(f, "the {log} log writes to segment {segment}, which is of type {stored}")
            }
            CurrentUsed { log, segment, next, used } => write!(
                f,
                "the {log} log writes next to block {next} of segment {segment}, but block {used} is in use already"
            ),
            Chain { block, problem } => {
                write!(f, "the chain of nodes written since the checkpoint is broken at block {block}: {problem}")
            }
            ChainNode { block, problem } => {
                write!(f, "block {block} in the chain of fsynced nodes cannot be replayed: {problem}")
            }
            NatReserved { nid } => {
                write!(f, "the NAT entry of reserved node {nid} is not the constant that it should be")
            }
            NatZero { stored } => {
                write!(f, "the NAT entry of node 0, which is no node, has block {stored}, should be 0")
            }
            NatSuperseded { nid, block } => {
                write!(f, "the NAT entry of node {nid}, which the journal replaces, has block {block}, but no inode")
            }
            NatAddress { nid, block } => {
                write!(f, "the NAT entry of node {nid} has address {block}, outside the main area")
            }
            NatOwner { nid, inode } => {
                write!(f, "the NAT entry of node {nid} names inode {inode}, which is not in use")
            }
            NodeFooter { nid, block, problem } => write!(f, "block {block} is not node {nid}: {problem}"),
            NodeCold { nid, stored } => {
                let (is, should) = if *stored { ("cold", "not cold") } else { ("not cold", "cold") };
                write!(f, "node {nid} is marked {is}, should be {should}")
            }
            NodeVersion { nid, stored, checkpoint } => {
                write!(f, "node {nid} has checkpoint version {stored:#x}, should be at most {checkpoint:#x}")
            }
            NodeNext { nid, next } => write!(f, "node {nid} has next address {next}, outside the main area"),
            NodePointer { inode, nid, offset, problem } => {
                write!(f, "inode {inode} has node {nid} as its node {offset}, but {problem}")
            }
            NodeUnreachable { nid, inode } => write!(f, "node {nid} is in use, but inode {inode} does not lead to it"),
            InodeDamaged { inode, problem } => write!(f, "inode {inode} is damaged: {problem}"),
            InodeChecksum { inode, problem } => write!(f, "inode {inode}: {problem}"),
            InodeFeature { inode, feature } => {
                write!(f, "inode {inode} uses feature {feature}, which the volume does not have")
            }
            InlineXattrSize { inode, stored, most } => {
                write!(f, "inode {inode} has i_inline_xattr_size {stored}, should be 1 to {most}")
            }
            InlineReserved { inode, stored } => {
                write!(f, "the word before the inline contents of inode {inode} is {stored:#x}, should be 0")
            }
            InlineUnmarked { inode } => {
                write!(f, "inode {inode} has inline data, but the flag data_exist is not set")
            }
            UnexpectedPointers { inode } => {
                write!(f, "inode {inode} has addresses or nodes, but its type or inline contents allow none")
            }
            Extent { inode, lbn, block, blocks } => write!(
                f,
                "the cached extent of inode {inode} ({blocks} blocks of the file from {lbn} at block {block}) is wrong"
            ),
            BlocksCount { inode, stored, counted } => {
                write!(f, "inode {inode} has i_blocks {stored}, should be {counted}")
            }
            SizeTooSmall { inode, stored, least } => {
                write!(f, "directory {inode} has i_size {stored}, should be at least {least}")
            }
            BlocksBeyondEnd { inode, stored, lbn } => {
                write!(f, "inode {inode} has i_size {stored}, but a block beyond it, file block {lbn}")
            }
            SymlinkInvalid { inode, problem } => write!(f, "symbolic link {inode} has no usable target: {problem}"),
            XattrMagic { inode, stored } => {
                write!(f, "the attributes of inode {inode} have the wrong magic number {stored:#x}")
            }
            Xattrs { inode, problem } => write!(f, "the attributes of inode {inode} are damaged: {problem}"),
            IllegalBlock { inode, lbn, block } => {
                write!(f, "inode {inode} has file block {lbn} at block {block}, outside the main area")
            }
            MultiplyClaimed { inode, nid, block } => {
                write!(f, "block {block} is used by node {nid} of inode {inode}, but has another owner already")
            }
            UsedButFree { inode, block } => write!(f, "block {block} is marked free, but inode {inode} uses it"),
            SegmentClass { segment, stored, block } => {
                write!(f, "segment {segment} is of type {stored}, but block {block} in it is not")
            }
            Temperature { segment, stored, blocks } => {
                write!(f, "segment {segment} is of type {stored}, but {blocks} of its blocks belong to another log")
            }
            MixedSection { section, nodes, data } => {
                write!(
                    f,
                    "section {section} has {nodes} segments of nodes and {data} of data: Linux cleans whole sections"
                )
            }
            SummaryKind { segment, nodes } => {
                let (says, is) = if *nodes { ("nodes", "data") } else { ("data", "nodes") };
                write!(f, "the summary of segment {segment} is one of {says}, should be one of {is}")
            }
            Summary { segment, block, stored, should } => {
                write!(f, "the summary of segment {segment} has {stored} as owner of block {block}, should be {should}")
            }
            EntriesDamaged { directory, lbn, problem } => {
                write!(f, "directory {directory}, block {lbn} is damaged: {problem}")
            }
            DotMissing { directory, name } => write!(f, "directory {directory} has no '{name}'"),
            DotMisplaced { directory, name, lbn } => {
                write!(f, "directory {directory} has '{name}' in block {lbn}, not at its place in block 0")
            }
            DotWrong { directory, stored } => {
                write!(f, "'.' in directory {directory} names inode {stored}, should be {directory}")
            }
            DotDotWrong { directory, stored, parent } => {
                write!(f, "'..' in directory {directory} names inode {stored}, should be {parent}")
            }
            ParentWrong { directory, stored, parent } => {
                write!(f, "directory {directory} has i_pino {stored}, should be {parent}")
            }
            EntryHash { directory, name, stored, should } => {
                write!(f, "entry '{name}' in directory {directory} has hash {stored:#010x}, should be {should:#010x}")
            }
            EntryMisplaced { directory, name, lbn } => {
                write!(
                    f,
                    "entry '{name}' in directory {directory} is in block {lbn}, which look-ups of it do not search"
                )
            }
            EntryUnused { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} names inode {inode}, which is not in use")
            }
            EntryReserved { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} names reserved inode {inode}")
            }
            EntryType { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} has a type other than that of inode {inode}")
            }
            EntryDirectoryAgain { directory, name, inode } => {
                write!(f, "entry '{name}' in directory {directory} is a second name of directory {inode}")
            }
            EntryDuplicate { directory, name } => write!(f, "directory {directory} has '{name}' twice"),
            NameStale { inode, directory, name } => {
                write!(f, "inode {inode} records another name or parent, should be '{name}' in directory {directory}")
            }
            DirectoryLoop { inode } => write!(f, "directory {inode} is below itself and not connected to the root"),
            RootNotDirectory => write!(f, "the root inode is not a directory"),
            LinkCount { inode, stored, counted } => {
                write!(f, "inode {inode} has link count {stored}, should be {counted}")
            }
            Unattached { inode } => write!(f, "inode {inode} is in use, but has no name"),
            OrphanUnused { inode } => write!(f, "inode {inode} is an orphan, but is not in use"),
            OrphanNamed { inode, names } => write!(f, "inode {inode} is an orphan, but has {names} names"),
            Leaked { segment, blocks, first } => {
                write!(f, "segment {segment} has {blocks} blocks marked used that are not in use, first {first}")
            }
            Count { count, stored, counted } => {
                write!(f, "the checkpoint counts {stored} {count}, should be {counted}")
            }
        }
    }
}
