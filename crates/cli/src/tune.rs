//! `moafs tune`: changes a volume that is not mounted, as tune2fs(8) does.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_disk::SharedDisk;
use moafs_disk::file::FileOptions;
use moafs_ext::tune::{OnErrors, Reserve};
use moafs_mount::source::Source;
use moafs_runtime::Live;
use uuid::Uuid;

use crate::error::{CliError, Result};
use crate::format_name::FormatName;
use crate::mkfs::journal_bytes;
use crate::{identity, output, partition, volume};

/// Change label, UUID, reserve or behaviour of a volume that is not mounted; give it a journal
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs tune -L backup disk.img          name the volume
  moafs tune -U random disk.img          give a copy of a volume a UUID of its own
  moafs tune -m 1 -e remount-ro disk.img keep 1 % for root; after an error the kernel lets no changes in
  moafs tune -j disk.img                 add a journal: ext2 becomes ext3, and ext4 without a journal can be written

Of an F2FS volume label and UUID can be changed.

Exit code: 0 done, 1 not done (and said why).")]
pub(crate) struct TuneArgs {
    /// The image or device
    image: PathBuf,
    /// The label: at most 16 bytes (F2FS: 512 UTF-16 units)
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// The UUID, or `random`, `time` (of the time and a random node), or `clear` for none
    #[arg(short = 'U', long, value_name = "UUID", value_parser = identity::parse)]
    uuid: Option<Uuid>,
    /// Percentage of blocks kept for root, at most 50
    #[arg(short = 'm', long, value_name = "PERCENT", conflicts_with = "reserved_blocks")]
    reserved: Option<f64>,
    /// Number of blocks kept for root
    #[arg(short = 'r', long, value_name = "BLOCKS")]
    reserved_blocks: Option<u64>,
    /// The kernel's behaviour when it finds an error: continue, remount-ro, panic
    #[arg(short = 'e', long, value_name = "BEHAVIOUR", value_parser = on_errors)]
    on_errors: Option<OnErrors>,
    /// Add a journal, as large as that of a new volume of this size
    #[arg(short = 'j', long)]
    journal: bool,
    /// Add a journal of this size: size=MEBIBYTES
    #[arg(short = 'J', long, value_name = "OPTION", value_parser = journal_bytes)]
    journal_size: Option<u64>,
}

fn on_errors(text: &str) -> Result<OnErrors, String> {
    match text {
        "continue" => Ok(OnErrors::Continue),
        "remount-ro" => Ok(OnErrors::RemountReadOnly),
        "panic" => Ok(OnErrors::Panic),
        _ => Err("give continue, remount-ro or panic".to_owned()),
    }
}

impl TuneArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !self.names_a_change() {
            let options = "--label, --uuid, --reserved, --reserved-blocks, --on-errors, --journal or --journal-size";
            return Err(CliError::Usage(format!("name a change: {options}")));
        }
        drop(Source::of(&partition::split(&self.image).0)?.claim()?);
        let disk = volume::open_disk(&self.image, FileOptions::default())?.disk;
        let changed = match FormatName::on_disk(&self.image, &disk)? {
            FormatName::Ext => self.change_ext(&disk),
            FormatName::F2fs => self.change_f2fs(&disk),
        };
        let fail = |problem| CliError::Usage(format!("{}: {problem}", output::path(&self.image)));
        changed.map_err(fail)?;
        Ok(ExitCode::SUCCESS)
    }

    fn names_a_change(&self) -> bool {
        self.label.is_some() || self.uuid.is_some() || self.wants_ext_change()
    }

    /// True if a change is wanted that only the ext family knows.
    fn wants_ext_change(&self) -> bool {
        let reserve = self.reserved.is_some() || self.reserved_blocks.is_some();
        reserve || self.on_errors.is_some() || self.journal || self.journal_size.is_some()
    }

    fn change_ext(&self, disk: &SharedDisk) -> Result<(), String> {
        use moafs_ext::tune::{Change, tune};
        let adds_journal = self.journal || self.journal_size.is_some();
        let changes: Vec<Change> = [
            self.label.as_ref().map(|label| Change::Label(label.as_bytes().to_vec())),
            self.uuid.map(|uuid| Change::Uuid(*uuid.as_bytes())),
            self.reserved.map(|percent| Change::Reserve(Reserve::Percent(percent))),
            self.reserved_blocks.map(|blocks| Change::Reserve(Reserve::Blocks(blocks))),
            self.on_errors.map(Change::OnErrors),
            adds_journal.then_some(Change::AddJournal(self.journal_size)),
        ]
        .into_iter()
        .flatten()
        .collect();
        tune(disk, &changes, Live::new().timestamp()).map_err(|error| error.to_string())
    }

    fn change_f2fs(&self, disk: &SharedDisk) -> Result<(), String> {
        use moafs_f2fs::tune::{Change, tune};
        if self.wants_ext_change() {
            return Err("of an F2FS volume only label and UUID can be changed".to_owned());
        }
        let changes = [self.label.clone().map(Change::Label), self.uuid.map(|uuid| Change::Uuid(*uuid.as_bytes()))];
        tune(disk, &changes.into_iter().flatten().collect::<Vec<_>>()).map_err(|error| error.to_string())
    }
}
