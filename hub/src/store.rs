//! The state folder: jobs, agents and records in SQLite, weights in safetensors, kernels as they came.
//!
//! One thread writes, so that a slow disk never delays a round; readers have a connection of their own.

mod folder;
mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use omnilearn_hub_core::record::Record;
use omnilearn_wire::message::Machine;
use omnilearn_wire::{AgentId, JobId};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

pub use folder::{DATASETS, StoreError};

use crate::limits::{STORE_INBOX, STORE_RESERVED};
use crate::view::{self, BatchRow, EvaluationRow, JobState, JobView, RecordPage, RoundRow, StepRow, TimingsRow};

type Write = Box<dyn FnOnce(&Connection) -> rusqlite::Result<()> + Send>;

enum Command {
    Records(Vec<(JobId, Record)>),
    Write(Write),
    Flush(oneshot::Sender<()>),
}

/// A handle to the state folder.
#[derive(Clone)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    commands: SyncSender<Command>,
    waiting: AtomicUsize,
    dropped_records: AtomicU64,
    reader: Mutex<Connection>,
    folder: folder::Folder,
}

/// A job as it is kept.
pub(crate) struct StoredJob {
    pub(crate) view: JobView,
    pub(crate) job_file: String,
    pub(crate) kernel: [u8; 32],
    /// The kernel's signature by its author.
    pub(crate) author: Option<String>,
    /// Digest of the weights that it begins with.
    pub(crate) weights: Option<[u8; 32]>,
}

impl Store {
    /// Opens or makes the state folder, and locks it for this process. `holder` is shown to whoever comes second.
    ///
    /// # Errors
    /// [`StoreError`]: in use, foreign, damaged, or no access. Nothing in the folder is changed then.
    pub(crate) fn open(directory: &Path, holder: &str) -> Result<Store, StoreError> {
        let folder = folder::Folder::lock(directory, holder)?;
        let database = folder.database();
        let writer = schema::open(&database)?;
        let reader = schema::open_reader(&database)?;
        let (commands, inbox) = std::sync::mpsc::sync_channel(STORE_INBOX);
        let shared = Arc::new(Shared {
            commands,
            waiting: AtomicUsize::new(0),
            dropped_records: AtomicU64::new(0),
            reader: Mutex::new(reader),
            folder,
        });
        let next_record = writer
            .query_row(schema::LAST_RECORD, [], |row| row.get::<_, i64>(0))
            .map_err(|cause| StoreError::Database { path: database.clone(), cause })?;
        let watched = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                let taken = || {
                    if let Some(shared) = watched.upgrade() {
                        shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    }
                };
                write_all(writer, &inbox, next_record as u64 + 1, taken);
            })
            .map_err(|cause| StoreError::Io { path: database, cause })?;
        Ok(Store { shared })
    }

    /// Keeps records, or drops and counts them if the disk does not keep up.
    pub(crate) fn records(&self, records: Vec<(JobId, Record)>) {
        let count = records.len() as u64;
        let room = self.shared.waiting.load(Ordering::Relaxed) + STORE_RESERVED < STORE_INBOX;
        if !(room && self.send(Command::Records(records)))
            && self.shared.dropped_records.fetch_add(count, Ordering::Relaxed) == 0
        {
            tracing::error!("the disk does not keep up, records are dropped; training goes on");
        }
    }

    /// Records dropped so far.
    pub(crate) fn dropped_records(&self) -> u64 {
        self.shared.dropped_records.load(Ordering::Relaxed)
    }

    fn send(&self, command: Command) -> bool {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        match self.shared.commands.try_send(command) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                false
            }
        }
    }

    fn write(&self, what: &'static str, write: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static) {
        if !self.send(Command::Write(Box::new(write))) {
            tracing::error!(what, "the disk does not keep up, a change of state is not kept");
        }
    }

    /// Keeps a new job.
    pub(crate) fn new_job(&self, job: StoredJob) {
        let StoredJob { view, job_file, kernel, author, weights } = job;
        let (id, state) = (view.id as i64, view.state.as_str());
        let view = serde_json::to_string(&view).expect("a view holds only what JSON can say");
        self.write("job", move |connection| {
            let insert = "INSERT INTO jobs (id, state, view, job_file, kernel, author, weights) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let values = params![id, state, view, job_file, kernel, author, weights];
            connection.prepare_cached(insert)?.execute(values).map(drop)
        });
    }

    /// Keeps the new state of a job.
    pub(crate) fn job(&self, view: &JobView) {
        let (id, state) = (view.id as i64, view.state.as_str());
        let view = serde_json::to_string(view).expect("a view holds only what JSON can say");
        self.write("job", move |connection| {
            let update = "UPDATE jobs SET state = ?2, view = ?3 WHERE id = ?1";
            connection.prepare_cached(update)?.execute(params![id, state, view]).map(drop)
        });
    }

    /// Keeps an agent.
    pub(crate) fn agent(&self, agent: AgentId, name: &str, machine: &Machine) {
        let (name, machine) = (name.to_owned(), serde_json::to_string(machine).unwrap_or_default());
        self.write("agent", move |connection| {
            let upsert = "INSERT INTO agents (id, name, machine, seen_s) VALUES (?1, ?2, ?3, unixepoch()) \
                ON CONFLICT (id) DO UPDATE SET machine = excluded.machine, seen_s = excluded.seen_s";
            connection.prepare_cached(upsert)?.execute(params![agent.0, name, machine]).map(drop)
        });
    }

    /// Waits until everything given so far is on disk.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.send(Command::Flush(done)) {
            flushed.await.ok();
        }
    }

    /// Reads on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let reading = tokio::task::spawn_blocking(move || {
            let reader = shared.reader.lock().unwrap_or_else(PoisonError::into_inner);
            read(&reader).map_err(|cause| StoreError::Database { path: shared.folder.database(), cause })
        });
        reading.await.unwrap_or(Err(StoreError::ShuttingDown))
    }

    /// Every job, oldest first.
    pub(crate) async fn jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        self.read(|connection| {
            let select = "SELECT view, job_file, kernel, author, weights FROM jobs ORDER BY id";
            let mut select = connection.prepare_cached(select)?;
            let rows = select.query_map([], stored_job)?;
            rows.collect()
        })
        .await
    }

    /// One job.
    pub(crate) async fn find_job(&self, job: JobId) -> Result<Option<StoredJob>, StoreError> {
        self.read(move |connection| {
            let select = "SELECT view, job_file, kernel, author, weights FROM jobs WHERE id = ?1";
            let mut select = connection.prepare_cached(select)?;
            select.query_row([job.0 as i64], stored_job).optional()
        })
        .await
    }

    /// Every agent that ever connected: number, name, machine.
    pub(crate) async fn agents(&self) -> Result<Vec<(AgentId, String, Option<Machine>)>, StoreError> {
        self.read(|connection| {
            let mut select = connection.prepare_cached("SELECT id, name, machine FROM agents ORDER BY id")?;
            let rows = select.query_map([], |row| {
                let machine: String = row.get(2)?;
                Ok((AgentId(row.get(0)?), row.get(1)?, serde_json::from_str(&machine).ok()))
            })?;
            rows.collect()
        })
        .await
    }

    /// Records after number `since`, at most `rows` of a kind.
    pub(crate) async fn page(&self, job: JobId, since: u64, rows: u32, steps: bool) -> Result<RecordPage, StoreError> {
        self.read(move |connection| page(connection, job, since, rows, steps)).await
    }

    /// Where a job's weights are kept.
    pub(crate) fn weights(&self, job: JobId) -> PathBuf {
        self.shared.folder.weights(job)
    }

    /// Where the hub's own key is kept.
    pub(crate) fn hub_key(&self) -> PathBuf {
        self.shared.folder.hub_key()
    }

    /// The folder of the data sets that were added.
    pub(crate) fn datasets(&self) -> PathBuf {
        self.shared.folder.datasets()
    }

    /// The folder of the weights that jobs begin with.
    pub(crate) fn given_weights(&self) -> PathBuf {
        self.shared.folder.given_weights()
    }

    /// The folder of frozen parameters.
    pub(crate) fn frozen(&self) -> PathBuf {
        self.shared.folder.frozen()
    }

    /// Where a kernel is kept.
    pub(crate) fn kernel(&self, digest: &[u8; 32]) -> PathBuf {
        self.shared.folder.kernel(digest)
    }
}

fn stored_job(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredJob> {
    let view: String = row.get(0)?;
    let view = serde_json::from_str(&view)
        .map_err(|cause| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(cause)))?;
    Ok(StoredJob { view, job_file: row.get(1)?, kernel: row.get(2)?, author: row.get(3)?, weights: row.get(4)? })
}

/// The writing thread: one transaction for each batch of records.
fn write_all(mut connection: Connection, inbox: &Receiver<Command>, mut next_record: u64, taken: impl Fn()) {
    while let Ok(command) = inbox.recv() {
        taken();
        let result = match command {
            Command::Records(records) => write_records(&mut connection, &records, &mut next_record),
            Command::Write(write) => write(&connection),
            Command::Flush(done) => {
                done.send(()).ok();
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::error!(%error, "cannot write to the state folder");
        }
    }
}

fn write_records(
    connection: &mut Connection,
    records: &[(JobId, Record)],
    next_record: &mut u64,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for (job, record) in records {
        let (job, id) = (job.0 as i64, *next_record as i64);
        if let Record::Timings(late) = record {
            let times = TimingsRow::from(&late.timings);
            transaction.prepare_cached(schema::UPDATE_TIMINGS)?.execute(params![
                job,
                late.assignment.0 as i64,
                late.agent.0,
                times.wait_s,
                times.load_s,
                times.compute_s,
                times.encode_s,
                times.send_s,
                times.cpu_s,
                times.throttled_s,
                times.quota_cores,
                times.sustained_s,
                times.warm_up,
            ])?;
            continue;
        }
        let mut row = RecordPage::default();
        row.push(*next_record, record);
        *next_record += 1;
        for step in &row.steps {
            let times = step.timings.as_ref();
            transaction.prepare_cached(schema::INSERT_STEP)?.execute(params![
                id,
                job,
                step.wall_s,
                step.round as i64,
                step.version as i64,
                step.agent,
                step.assignment as i64,
                step.samples,
                step.loss,
                step.staleness as i64,
                times.map(|times| times.wait_s),
                times.map(|times| times.load_s),
                times.map(|times| times.compute_s),
                times.map(|times| times.encode_s),
                times.map(|times| times.send_s),
                times.map(|times| times.cpu_s),
                times.map(|times| times.throttled_s),
                times.and_then(|times| times.quota_cores),
                times.map(|times| times.sustained_s),
                times.map(|times| times.warm_up),
                view::format_spans(&step.spans),
            ])?;
        }
        for round in &row.rounds {
            transaction.prepare_cached(schema::INSERT_ROUND)?.execute(params![
                id,
                job,
                round.wall_s,
                round.training_s,
                round.version as i64,
                round.epoch,
                round.loss,
                round.samples,
                round.updates,
                round.learning_rate,
                round.gradient_norm,
            ])?;
        }
        for evaluation in &row.evaluations {
            let metrics = serde_json::to_string(&evaluation.metrics).unwrap_or_default();
            transaction.prepare_cached(schema::INSERT_EVALUATION)?.execute(params![
                id,
                job,
                evaluation.wall_s,
                evaluation.training_s,
                evaluation.version as i64,
                evaluation.epoch,
                evaluation.samples,
                evaluation.loss,
                evaluation.accuracy,
                metrics,
            ])?;
        }
        for batch in &row.batches {
            transaction.prepare_cached(schema::INSERT_BATCH)?.execute(params![
                id,
                job,
                batch.wall_s,
                batch.version as i64,
                batch.agent,
                batch.samples,
                batch.reason,
            ])?;
        }
    }
    transaction.commit()
}

/// The times of a step, which are all there or all missing.
fn timings_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<TimingsRow>> {
    let Some(sustained_s) = row.get(17)? else { return Ok(None) };
    Ok(Some(TimingsRow {
        wait_s: row.get(9)?,
        load_s: row.get(10)?,
        compute_s: row.get(11)?,
        encode_s: row.get(12)?,
        send_s: row.get(13)?,
        cpu_s: row.get(14)?,
        throttled_s: row.get(15)?,
        quota_cores: row.get(16)?,
        sustained_s,
        warm_up: row.get(18)?,
    }))
}

fn page(connection: &Connection, job: JobId, since: u64, rows: u32, steps: bool) -> rusqlite::Result<RecordPage> {
    let key = params![job.0 as i64, since as i64, rows];
    let number = |row: &rusqlite::Row<'_>, index: usize| row.get::<_, i64>(index).map(|value| value as u64);
    let mut page = RecordPage::default();
    if steps {
        let mut select = connection.prepare_cached(schema::SELECT_STEPS)?;
        let found = select.query_map(key, |row| {
            Ok(StepRow {
                id: number(row, 0)?,
                wall_s: row.get(1)?,
                round: number(row, 2)?,
                version: number(row, 3)?,
                agent: row.get(4)?,
                assignment: number(row, 5)?,
                samples: row.get(6)?,
                loss: row.get(7)?,
                staleness: number(row, 8)?,
                timings: timings_row(row)?,
                spans: view::parse_spans(&row.get::<_, String>(19)?),
            })
        })?;
        page.steps = found.collect::<rusqlite::Result<_>>()?;
    }
    let mut select = connection.prepare_cached(schema::SELECT_ROUNDS)?;
    let found = select.query_map(key, |row| {
        Ok(RoundRow {
            id: number(row, 0)?,
            wall_s: row.get(1)?,
            training_s: row.get(2)?,
            version: number(row, 3)?,
            epoch: row.get(4)?,
            loss: row.get(5)?,
            samples: row.get(6)?,
            updates: row.get(7)?,
            learning_rate: row.get(8)?,
            gradient_norm: row.get(9)?,
        })
    })?;
    page.rounds = found.collect::<rusqlite::Result<_>>()?;
    let mut select = connection.prepare_cached(schema::SELECT_EVALUATIONS)?;
    let found = select.query_map(key, |row| {
        let metrics: String = row.get(8)?;
        Ok(EvaluationRow {
            id: number(row, 0)?,
            wall_s: row.get(1)?,
            training_s: row.get(2)?,
            version: number(row, 3)?,
            epoch: row.get(4)?,
            samples: row.get(5)?,
            loss: row.get(6)?,
            accuracy: row.get(7)?,
            metrics: serde_json::from_str::<BTreeMap<_, _>>(&metrics).unwrap_or_default(),
        })
    })?;
    page.evaluations = found.collect::<rusqlite::Result<_>>()?;
    let mut select = connection.prepare_cached(schema::SELECT_BATCHES)?;
    let found = select.query_map(key, |row| {
        Ok(BatchRow {
            id: number(row, 0)?,
            wall_s: row.get(1)?,
            version: number(row, 2)?,
            agent: row.get(3)?,
            samples: row.get(4)?,
            reason: row.get(5)?,
        })
    })?;
    page.batches = found.collect::<rusqlite::Result<_>>()?;

    // A kind that was cut ends the page for all, so that the next begins at one number for all.
    let rows = rows as usize;
    let last = |ids: &[u64]| (ids.len() == rows).then(|| ids.last().copied()).flatten();
    let batch_ids: Vec<u64> = page.batches.iter().map(|row| row.id).collect();
    let cuts = [
        last(&page.steps.iter().map(|row| row.id).collect::<Vec<_>>()),
        last(&page.rounds.iter().map(|row| row.id).collect::<Vec<_>>()),
        last(&page.evaluations.iter().map(|row| row.id).collect::<Vec<_>>()),
        // One change of batches is several rows of one number, of which some may be missing.
        last(&batch_ids).map(|cut| if batch_ids.first() == Some(&cut) { cut } else { cut - 1 }),
    ];
    let cut = cuts.into_iter().flatten().min();
    if let Some(cut) = cut {
        page.steps.retain(|row| row.id <= cut);
        page.rounds.retain(|row| row.id <= cut);
        page.evaluations.retain(|row| row.id <= cut);
        page.batches.retain(|row| row.id <= cut);
    }
    let ends = [
        page.steps.last().map(|row| row.id),
        page.rounds.last().map(|row| row.id),
        page.evaluations.last().map(|row| row.id),
        page.batches.last().map(|row| row.id),
    ];
    page.more = cut.is_some();
    page.next = cut.or(ends.into_iter().flatten().max()).unwrap_or(since);
    Ok(page)
}

/// Marks what a hub left behind that did not end in order.
pub(crate) fn interrupted(mut view: JobView) -> Option<JobView> {
    if view.state.is_final() {
        return None;
    }
    view.state = JobState::Interrupted;
    view.message =
        "the hub ended while the job ran; its last checkpoint can be exported, and the job file submitted again".into();
    Some(view)
}

#[cfg(test)]
mod tests;
