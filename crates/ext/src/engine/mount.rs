//! Opening a volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::AtomicU64;
use moafs_runtime::{Rt, lock};
use moafs_vfs::format::Shape;
use moafs_vfs::types::{FileKind, Ino, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::extents;
use super::incore::{Registry, USER_FLAGS};
use super::map;
use super::recover::Recovery;
use super::volume::Ext;
use crate::alloc::Alloc;
use crate::format::renaming::Marks;
use crate::format::superblock::{Compat, Incompat, MARK_VERSION, RoCompat, State};
use crate::format::{BlockNo, Descriptor, Geometry, InodeNo, Superblock, Support, dir as codec, inode, map as paths};
use crate::head::{geometry_of, read_descriptors, read_superblock};
use crate::health::Health;
use crate::journal;
use crate::meta::Meta;
use crate::own_file::OwnFile;
use crate::place::windows::Windows;
use crate::place::{Directories, Policy};

/// Bytes that one read of the inode table brings.
const TABLE_READ_BYTES: u32 = 64 << 10;

/// Metadata blocks that adding a name may take: a directory block and three levels of its map.
const NAME_META_BLOCKS: u64 = 4;
/// The same where indexes are kept up to date: two nodes of the directory's index come with them.
const INDEXED_NAME_META_BLOCKS: u64 = 6;

/// Options for opening a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// True if nothing at all may be written.
    pub read_only: bool,
    /// The largest data request in bytes.
    pub transfer_bytes_max: usize,
    /// The policy that decides where data go.
    pub place: Policy,
    /// The rule for the groups of new directories; `None`: the policy's own.
    pub directories: Option<Directories>,
    /// With a journal: true if small writes that an fsync waits for go into it, and to their places later. That saves
    /// moves of a disk's head; without a head it costs more than it saves.
    pub log_small_writes: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            transfer_bytes_max: 1 << 20,
            place: Policy::default(),
            directories: None,
            log_small_writes: false,
        }
    }
}

impl Ext {
    /// Opens a volume: reads only the superblock and the descriptors. A volume opened for writing
    /// is marked as in use.
    ///
    /// # Errors
    /// [`Error::Refused`] for features that are not supported and for volumes that another driver left
    /// uncleanly, with the command that helps; damage and device errors as they are.
    pub fn open(disk: SharedDisk, rt: Rt, options: OpenOptions) -> Result<Ext> {
        let mut superblock = read_superblock(&disk)?;
        let writable = !options.read_only && !disk.limits().read_only;
        let mut read_only = (!writable).then(|| "it was opened for reading only".to_owned());
        match superblock.support(writable) {
            Support::ReadWrite => {}
            Support::ReadOnly(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                if !reasons.is_empty() {
                    read_only = Some(reasons.join("; "));
                }
            }
            Support::Refuse(unsupported) => return Err(Error::Refused(unsupported.to_string())),
        }
        let mut geo = geometry_of(&superblock, &disk)?;
        let (mut disk, mut notes, mut log) = (disk, Vec::new(), None);
        let has_journal = superblock.compat().contains(Compat::HAS_JOURNAL);
        let needs_replay = journal::needs_replay(&superblock);
        // Before a replay: the journal may hold a superblock from before the damage was found.
        refuse_if_marked(&superblock, read_only.is_none())?;
        let replayed = needs_replay && read_only.is_some();
        if replayed {
            let (shown, replay) = journal::read_through(&disk, &superblock, &geo)?;
            if replay.transactions > 0 {
                notes.push(format!(
                    "{} transactions are read from the journal, which has to be replayed",
                    replay.transactions
                ));
            }
            disk = shown;
        } else if read_only.is_none() && (has_journal || needs_replay) {
            let (opened, replay) = journal::recover(&disk, &superblock, &geo, needs_replay)?;
            if replay.transactions > 0 {
                notes.push(format!("{} transactions of the journal were replayed", replay.transactions));
            }
            log = Some(opened);
        }
        if needs_replay {
            // The superblock itself may be in the journal.
            superblock = read_superblock(&disk)?;
            if let Support::Refuse(unsupported) = superblock.support(false) {
                return Err(Error::Refused(unsupported.to_string()));
            }
            geo = geometry_of(&superblock, &disk)?;
        }
        let clean = superblock.state().contains(State::VALID) && !superblock.state().contains(State::ERROR);
        let ours = superblock.writer_mark_matches(MARK_VERSION) && log.is_none();
        refuse_if_marked(&superblock, read_only.is_none())?;
        if !clean && !ours && read_only.is_none() {
            return Err(Error::Refused(
                "the volume was not unmounted cleanly, and the last driver to write it was not moafs: its bitmaps cannot be \
                 trusted; run `moafs fsck -p` or `e2fsck -p` on it, or mount it with `-o ro`"
                    .to_owned(),
            ));
        }
        let descriptors = read_descriptors(&disk, &geo)?;
        if !clean && read_only.is_none() && log.is_none() {
            journal::clear_unnamed(&disk, &geo, &descriptors)?;
        }
        let orphan_file = match read_only {
            None => orphan_file(&disk, &superblock, &geo)?,
            Some(_) => None,
        };
        let mut ext =
            Ext::assemble(disk, rt, options, superblock, geo, descriptors, clean, read_only, log, orphan_file);
        (ext.replayed, ext.shape.notes) = (replayed, notes);
        ext.check_root()?;
        ext.mark_in_use()?;
        ext.marks = Marks::of(&ext.superblock.lock());
        if ext.meta.has_journal() {
            ext.finish_orphans()?;
        }
        Ok(ext)
    }

    /// Refuses a volume without a root directory: nothing on it could be reached.
    fn check_root(&self) -> Result<()> {
        let refused = |problem: String| {
            Error::Refused(format!(
                "the root directory (inode 2) is damaged: {problem}; run `moafs fsck -y` or `e2fsck -fy`"
            ))
        };
        let root = match self.read_inode(InodeNo::ROOT) {
            Ok(root) => root,
            Err(error @ Error::Disk { .. }) => return Err(error),
            Err(Error::Stale(_)) => return Err(refused("the inode is not in use".to_owned())),
            Err(error) => return Err(refused(error.to_string())),
        };
        if root.kind != FileKind::Directory {
            return Err(refused(format!("the inode is a {:?}", root.kind).to_lowercase()));
        }
        let inode = root.inode();
        if inode.has_extents() {
            return match self.map_run(&root, Lbn(0), 1) {
                Ok(Mapping::Run(_)) => Ok(()),
                Ok(_) => Err(refused("it has no first block".to_owned())),
                Err(error @ Error::Disk { .. }) => Err(error),
                Err(error) => Err(refused(error.to_string())),
            };
        }
        let first = inode.block[0];
        if self.has_pointers(root.kind, &inode) && !self.geo.may_point_to(BlockNo(first.into())) {
            return Err(refused(format!("its first block is {first}")));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn assemble(
        disk: SharedDisk,
        rt: Rt,
        options: OpenOptions,
        superblock: Superblock,
        geo: Geometry,
        descriptors: Vec<Descriptor>,
        clean: bool,
        read_only: Option<String>,
        log: Option<journal::Log>,
        orphan_file: Option<OwnFile>,
    ) -> Ext {
        let health = Arc::new(Health::default());
        let has_journal = log.is_some();
        let mut own_blocks = log.as_ref().map_or_else(Vec::new, journal::Log::blocks);
        own_blocks.extend(orphan_file.iter().flat_map(OwnFile::blocks));
        let (shared, clock, watched) = (Arc::clone(&disk), Arc::clone(&rt), Arc::clone(&health));
        let meta = Arc::new(Meta::new(shared, clock, watched, geo.block_bytes(), geo.checksums, log));
        let mut shape = shape_of(&superblock, &geo, options.place, read_only);
        if meta.has_journal() {
            shape.size_follows_map = true;
            shape.name_meta_blocks = INDEXED_NAME_META_BLOCKS;
        }
        let writable = shape.read_only.is_none();
        let wanted = superblock.want_extra_isize();
        let room = geo.inode_size.saturating_sub(inode::GOOD_OLD_BYTES as u32);
        let extra_isize = match wanted {
            _ if room < u32::from(inode::EXTRA_BYTES) => 0,
            wanted if wanted != 0 && inode::extra_isize_is_legal(wanted, geo.inode_size) => wanted,
            _ => inode::EXTRA_BYTES,
        };
        let directories = descriptors.iter().map(|descriptor| descriptor.used_dirs).collect();
        Ext {
            alloc: Arc::new(Alloc::new(geo.clone(), Arc::clone(&meta), descriptors, own_blocks, clean)),
            own_files: superblock.own_files(),
            form: codec::Form { is_whole: meta.has_journal(), ..codec::Form::of(&geo) },
            meta,
            shape,
            marks: Marks::of(&superblock),
            superblock: Mutex::new(superblock),
            registry: Registry::new(Arc::clone(&rt), geo.block_size),
            held: Mutex::new(BTreeMap::new()),
            extra_isize,
            table_read_blocks: u64::from((TABLE_READ_BYTES / geo.block_size).max(1)),
            transfer_blocks: (options.transfer_bytes_max as u32 / geo.block_size).max(1),
            policy: options.place,
            directories: options.directories.unwrap_or(options.place.directories()),
            windows: Windows::default(),
            shared_xattrs: Mutex::new(()),
            names_level: AtomicU64::new(0),
            entries_level: AtomicU64::new(0),
            maps_level: AtomicU64::new(0),
            data_epoch: AtomicU64::new(0),
            replayed: false,
            logs_small_writes: options.log_small_writes && has_journal,
            orphans: lock::Mutex::new(Arc::clone(&rt), Vec::new()),
            recovery: Recovery::new(&rt, &geo, directories, writable && !clean),
            disk,
            rt,
            health,
            geo,
        }
    }

    /// Marks the volume on the disk as in use by moafs. The writer's mark goes first: it lies in
    /// another sector than the state it vouches for, and a volume in use without it is taken for
    /// another driver's. After a crash of our own both are there already; a mark at its old place
    /// moves, with the one write of its sector.
    fn mark_in_use(&self) -> Result<()> {
        if self.shape.read_only.is_some() {
            return Ok(());
        }
        if self.meta.has_journal() {
            let now = self.now_secs();
            return self.write_superblock(|superblock| {
                superblock.set_incompat(superblock.incompat() | Incompat::NEEDS_RECOVERY);
                superblock.set_mnt_count(superblock.mnt_count().wrapping_add(1));
                superblock.set_mtime(now);
                superblock.set_wtime(now);
            });
        }
        let swept = |level| self.meta.wait_for_host(|| self.sweep(level));
        if self.recovery.is_active() {
            let moved = self.superblock.lock().has_old_writer_mark();
            let mark = |superblock: &mut Superblock| superblock.set_writer_mark(MARK_VERSION);
            return if moved { self.change_superblock(mark).and_then(swept) } else { Ok(()) };
        }
        let now = self.now_secs();
        let mounts = self.superblock.lock().mnt_count().wrapping_add(1);
        let level = self.change_superblock(|superblock| superblock.promise_writer_mark(MARK_VERSION, mounts, now))?;
        swept(level)?;
        let level = self.change_superblock(|superblock| {
            superblock.set_state(superblock.state() - State::VALID);
            superblock.set_mnt_count(mounts);
            superblock.set_mtime(now);
            superblock.set_wtime(now);
        })?;
        swept(level)
    }
}

/// Refuses to write a volume that is marked as damaged.
fn refuse_if_marked(superblock: &Superblock, for_writing: bool) -> Result<()> {
    if !for_writing || !superblock.state().contains(State::ERROR) {
        return Ok(());
    }
    Err(Error::Refused(
        "the volume is marked as damaged: run `moafs fsck -p` or `e2fsck -p` on it, or mount it with `-o ro`"
            .to_owned(),
    ))
}

/// Finds the blocks of the orphan file, if the volume has one that is used: without a journal no driver does.
fn orphan_file(disk: &SharedDisk, superblock: &Superblock, geo: &Geometry) -> Result<Option<OwnFile>> {
    if !superblock.compat().contains(Compat::ORPHAN_FILE | Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let refused = |problem: &str| {
        Error::Refused(format!(
            "the file of deleted and truncated files (s_orphan_file_inum) cannot be used: {problem}; run `moafs fsck -y` or \
             `e2fsck -fy`, or mount it with `-o ro`"
        ))
    };
    let ino = InodeNo(superblock.orphan_file_inum());
    if ino.0 < geo.first_ino {
        return Err(refused(&format!("inode {ino} is no inode of a file")));
    }
    match OwnFile::read(disk, geo, ino) {
        Ok(file) => Ok(Some(file)),
        Err(error @ Error::Disk { .. }) => Err(error),
        Err(error) => Err(refused(&error.to_string())),
    }
}

/// Returns the blocks that files can never have: as the superblock tells, with the journal, or at least those of the
/// groups.
fn overhead_of(superblock: &Superblock, geo: &Geometry) -> u64 {
    let groups: u64 =
        geo.all_groups().map(|group| u64::from(geo.head_blocks(group) + 2 + geo.inode_table_blocks)).sum();
    let told = u64::from(superblock.overhead_clusters()) * u64::from(geo.cluster_blocks);
    (geo.first_data_block + groups).max(if told < geo.blocks { told } else { 0 })
}

fn shape_of(superblock: &Superblock, geo: &Geometry, policy: Policy, read_only: Option<String>) -> Shape {
    let extra = geo.inode_size >= inode::GOOD_OLD_BYTES as u32 + u32::from(inode::EXTRA_BYTES);
    let uuid = superblock.uuid();
    let word = |at: usize| uuid[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let keeps_unwritten = geo.incompat.contains(Incompat::EXTENT) && read_only.is_none();
    Shape {
        format: superblock.family_name(),
        block_size: geo.block_size,
        root: Ino(InodeNo::ROOT.0.into()),
        blocks: geo.blocks.saturating_sub(overhead_of(superblock, geo)),
        inodes: geo.inodes.into(),
        file_bytes_max: match geo.incompat.contains(Incompat::EXTENT) {
            true => extents::written_bytes_max(geo),
            false => paths::written_bytes_max(geo),
        },
        links_max: inode::LINKS_MAX.into(),
        uncounted_subdirectories: geo.ro_compat.contains(RoCompat::DIR_NLINK) && may_index(superblock),
        inodes_take_blocks: false,
        name_meta_blocks: NAME_META_BLOCKS,
        symlink_bytes_max: geo.block_bytes() - 1,
        symlink_inode_bytes_max: inode::FAST_SYMLINK_MAX,
        time_range: inode::time_range(extra),
        time_nanos: extra,
        birth_times: extra,
        user_flags: USER_FLAGS,
        beyond_eof: keeps_unwritten,
        frees_overhang: true,
        size_follows_map: false,
        unmap_step: map::UNMAP_STEP,
        allocate_on_write: policy.allocates_on_write(),
        id: word(0) ^ word(8),
        label: String::from_utf8_lossy(superblock.label()).into_owned(),
        read_only,
        notes: Vec::new(),
    }
}

/// Returns true if directories that grow get an index, which is what makes a single link of theirs legal.
fn may_index(superblock: &Superblock) -> bool {
    superblock.compat().contains(Compat::DIR_INDEX | Compat::HAS_JOURNAL)
}
