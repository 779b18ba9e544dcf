//! The counters of vfs: each decision has one, and `.moafs/stats` and the lab print the same struct.

use serde::Serialize;

moafs_runtime::counters! {
    /// Counters of one volume since it was opened. All are totals unless their name says otherwise.
    #[derive(Serialize)]
    pub struct Counters {
        /// Bytes that file data occupy in the cache now.
        cached_bytes: u64,
        /// Of those, bytes not on the volume yet.
        dirty_bytes: u64,
        /// Bytes that the format's metadata occupy now.
        metadata_bytes: u64,
        /// Decoded inodes in memory now.
        inodes_now: u64,
    } + pub(crate) struct Tally {
        /// Names looked up in directories.
        lookups,
        /// Inodes made by create, mknod, mkdir, symlink and tmpfile.
        creates,
        /// Names removed (unlink and rmdir).
        unlinks,
        /// Renames, exchanges included.
        renames,
        /// Calls that read file data.
        reads,
        /// Bytes returned to readers.
        read_bytes,
        /// Blocks that reads found in the cache.
        read_hits,
        /// Blocks that reads had to wait for.
        read_misses,
        /// Of those, blocks that went straight to the reader.
        bypass_blocks,
        /// Blocks that read-ahead asked for.
        read_ahead_blocks,
        /// Read requests given to the disk for file data.
        fill_requests,
        /// Misses of small files that brought their neighbours with the same request.
        co_reads,
        /// Blocks of neighbours that they brought.
        co_read_blocks,
        /// Of those, blocks that were read afterwards.
        co_read_blocks_used,
        /// Of those, blocks that left the cache before a reader asked for them.
        co_read_blocks_wasted,
        /// Misses of small files that a walker read alone, because it waits less for each block so.
        co_reads_declined,
        /// Blocks that defragmentation moved.
        gathered_blocks,
        /// Calls that write file data.
        writes,
        /// Bytes written into the cache.
        write_bytes,
        /// Write-back requests given to the disk.
        write_back_requests,
        /// Blocks that they carried.
        write_back_blocks,
        /// Write-back batches, each submitted and waited for at once.
        write_back_rounds,
        /// Requests that carried blocks of more than one file.
        co_writes,
        /// Files that these carried.
        co_written_files,
        /// Write-back requests that failed.
        write_back_errors,
        /// Dirty blocks that were dropped unwritten because their file went first.
        dropped_dirty_blocks,
        /// Clean blocks evicted from the cache.
        evictions,
        /// Times a writer waited for dirty data to leave.
        writer_waits,
        /// fsync and fdatasync calls.
        fsyncs,
        /// Calls of sync and syncfs.
        syncs,
        /// Commits because space was short.
        pressure_commits,
        /// Unlinked inodes given back to the format.
        reaped,
    }
}
