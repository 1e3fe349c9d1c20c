//! The database: its tables, its mark, and what is refused.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::folder::StoreError;

/// Marks our databases (`OLRN`), in SQLite's header.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"OLRN");

/// Version of the tables, in SQLite's header.
const VERSION: i32 = 4;

const TABLES: &str = "
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        state TEXT NOT NULL,
        view TEXT NOT NULL,       -- what the HTTP interface says of the job, JSON
        job_file TEXT NOT NULL,
        kernel BLOB NOT NULL,     -- SHA-256 of the component
        author TEXT,              -- the component's signature by its author, if the job came with one
        weights BLOB              -- SHA-256 of the weights that the job begins with, if they are given
    ) STRICT;
    CREATE TABLE agents (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        machine TEXT NOT NULL,    -- JSON
        seen_s INTEGER NOT NULL   -- since 1970
    ) STRICT;
    -- Records are numbered over all tables, in the order in which they were made. Times are seconds since the job started.
    CREATE TABLE steps (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, wall_s REAL NOT NULL,
        round INTEGER NOT NULL, version INTEGER NOT NULL, agent INTEGER NOT NULL, assignment INTEGER NOT NULL,
        samples INTEGER NOT NULL, spans TEXT NOT NULL, loss REAL, staleness INTEGER NOT NULL,
        -- The agent's own times, all but the quota at once: they may come later than the rest, or never.
        wait_s REAL, load_s REAL, compute_s REAL, encode_s REAL, send_s REAL, cpu_s REAL, throttled_s REAL,
        quota_cores REAL, sustained_s REAL, warm_up INTEGER
    ) STRICT;
    CREATE TABLE rounds (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, wall_s REAL NOT NULL, training_s REAL NOT NULL,
        version INTEGER NOT NULL, epoch REAL NOT NULL, loss REAL, samples INTEGER NOT NULL,
        updates INTEGER NOT NULL, learning_rate REAL NOT NULL, gradient_norm REAL
    ) STRICT;
    CREATE TABLE evaluations (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, wall_s REAL NOT NULL, training_s REAL NOT NULL,
        version INTEGER NOT NULL, epoch REAL NOT NULL, samples INTEGER NOT NULL, loss REAL,
        accuracy REAL, metrics TEXT NOT NULL
    ) STRICT;
    CREATE TABLE batches (
        id INTEGER NOT NULL, job INTEGER NOT NULL, wall_s REAL NOT NULL, version INTEGER NOT NULL,
        agent INTEGER NOT NULL, samples INTEGER NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (id, agent)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX steps_by_job ON steps (job, id);
    CREATE INDEX steps_without_timings ON steps (job, assignment) WHERE sustained_s IS NULL;
    CREATE INDEX rounds_by_job ON rounds (job, id);
    CREATE INDEX evaluations_by_job ON evaluations (job, id);
    CREATE INDEX batches_by_job ON batches (job, id);
";

pub(super) const LAST_RECORD: &str = "SELECT max(
    coalesce((SELECT max(id) FROM steps), 0), coalesce((SELECT max(id) FROM rounds), 0),
    coalesce((SELECT max(id) FROM evaluations), 0), coalesce((SELECT max(id) FROM batches), 0))";

pub(super) const INSERT_STEP: &str = "INSERT INTO steps
    (id, job, wall_s, round, version, agent, assignment, samples, loss, staleness, wait_s, load_s, compute_s, encode_s,
     send_s, cpu_s, throttled_s, quota_cores, sustained_s, warm_up, spans)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)";
/// Of steps that were recorded without. A repeat finds none.
pub(super) const UPDATE_TIMINGS: &str = "UPDATE steps SET
    wait_s = ?4, load_s = ?5, compute_s = ?6, encode_s = ?7, send_s = ?8, cpu_s = ?9, throttled_s = ?10, quota_cores = ?11,
    sustained_s = ?12, warm_up = ?13
    WHERE job = ?1 AND assignment = ?2 AND agent = ?3 AND sustained_s IS NULL";
pub(super) const INSERT_ROUND: &str = "INSERT INTO rounds
    (id, job, wall_s, training_s, version, epoch, loss, samples, updates, learning_rate, gradient_norm)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
pub(super) const INSERT_EVALUATION: &str = "INSERT INTO evaluations
    (id, job, wall_s, training_s, version, epoch, samples, loss, accuracy, metrics)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
pub(super) const INSERT_BATCH: &str = "INSERT INTO batches
    (id, job, wall_s, version, agent, samples, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(super) const SELECT_STEPS: &str = "SELECT
    id, wall_s, round, version, agent, assignment, samples, coalesce(loss, 0.0), staleness, wait_s, load_s, compute_s,
    encode_s, send_s, cpu_s, throttled_s, quota_cores, sustained_s, warm_up, spans
    FROM steps WHERE job = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
pub(super) const SELECT_ROUNDS: &str = "SELECT
    id, wall_s, training_s, version, epoch, coalesce(loss, 0.0), samples, updates, learning_rate, coalesce(gradient_norm, 0.0)
    FROM rounds WHERE job = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
pub(super) const SELECT_EVALUATIONS: &str = "SELECT
    id, wall_s, training_s, version, epoch, samples, coalesce(loss, 0.0), accuracy, metrics
    FROM evaluations WHERE job = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
pub(super) const SELECT_BATCHES: &str = "SELECT
    id, wall_s, version, agent, samples, reason
    FROM batches WHERE job = ?1 AND id > ?2 ORDER BY id, agent LIMIT ?3";

/// Opens our database for writing, or makes it.
///
/// # Errors
/// [`StoreError`], before anything is changed, if the file is not ours or damaged.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let exists = check_header(path)?;
    let database = |cause| StoreError::Database { path: path.to_owned(), cause };
    let mut connection = Connection::open(path).map_err(database)?;
    if exists {
        let damaged = |problem: String| StoreError::Damaged { path: path.to_owned(), problem };
        let check: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|cause| damaged(cause.to_string()))?;
        if check != "ok" {
            return Err(damaged(check));
        }
    } else {
        // In the old journal mode, so that the mark is in the file itself and not only in the write-ahead log.
        let transaction = connection.transaction().map_err(database)?;
        transaction.execute_batch(TABLES).map_err(database)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(database)?;
        transaction.pragma_update(None, "user_version", VERSION).map_err(database)?;
        transaction.commit().map_err(database)?;
    }
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 5000;")
        .map_err(database)?;
    Ok(connection)
}

/// Opens our database for reading beside the writer.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.execute_batch("PRAGMA busy_timeout = 5000;")?;
        Ok(connection)
    };
    open().map_err(|cause| StoreError::Database { path: path.to_owned(), cause })
}

/// Whether there is a database, and it is ours. Reads SQLite's header without SQLite, which could write.
fn check_header(path: &Path) -> Result<bool, StoreError> {
    let mut header = Vec::new();
    match File::open(path) {
        Ok(file) => {
            file.take(100).read_to_end(&mut header).map_err(|cause| StoreError::Io { path: path.to_owned(), cause })?
        }
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(StoreError::Io { path: path.to_owned(), cause }),
    };
    if header.is_empty() {
        return Ok(false);
    }
    let number = |offset: usize| {
        header.get(offset..).and_then(<[u8]>::first_chunk::<4>).map_or(0, |bytes| i32::from_be_bytes(*bytes))
    };
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(StoreError::Damaged { path: path.to_owned(), problem: "it is not a SQLite database".into() });
    }
    if number(68) != APPLICATION_ID {
        return Err(StoreError::Foreign { path: path.to_owned() });
    }
    if number(60) != VERSION {
        return Err(StoreError::Version { path: path.to_owned(), found: number(60), expected: VERSION });
    }
    Ok(true)
}
