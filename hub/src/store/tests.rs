use omnilearn_hub_core::record::{BatchesRecord, EvaluationRecord, RoundRecord, StepRecord, TimingsRecord};
use omnilearn_wire::message::{Span, StepTimings};
use omnilearn_wire::{AssignmentId, Version};

use super::*;

fn step(version: u64, agent: u32) -> Record {
    Record::Step(StepRecord {
        round: version,
        version: Version(version),
        agent: AgentId(agent),
        assignment: AssignmentId(version * 10 + u64::from(agent)),
        samples: 16,
        spans: vec![Span { epoch: 1, start: 5, end: 21 }],
        loss: 0.5,
        metric_sums: vec![3.0],
        staleness: 0,
        timings: Some(timings()),
        wall_s: version as f64,
    })
}

fn timings() -> StepTimings {
    StepTimings { compute_s: 0.25, cpu_s: f32::NAN, quota_cores: Some(0.5), ..StepTimings::default() }
}

fn round(version: u64) -> Record {
    Record::Round(RoundRecord {
        version: Version(version),
        loss: 0.25,
        wall_s: version as f64,
        training_s: version as f64,
        samples: 32,
        updates: 2,
        epoch: 0.5,
        learning_rate: 0.1,
        gradient_norm: 2.0,
    })
}

fn batches(version: u64) -> Record {
    Record::Batches(BatchesRecord {
        version: Version(version),
        wall_s: version as f64,
        batches: vec![(AgentId(1), 8), (AgentId(2), 24)],
        reason: "faster \"pi\"".into(),
    })
}

fn evaluation(version: u64) -> Record {
    Record::Evaluation(EvaluationRecord {
        version: Version(version),
        epoch: 1.0,
        training_s: 2.0,
        wall_s: 3.0,
        samples: 100,
        loss: 0.75,
        accuracy: Some(0.875),
        metrics: vec![("correct".into(), 0.875)],
    })
}

fn job(id: u64, state: JobState) -> JobView {
    JobView {
        id,
        name: "lenet".into(),
        state,
        message: String::new(),
        created_s: 1.5,
        mode: "bsp".into(),
        policy: "dynamic".into(),
        dataset: "mnist".into(),
        train_samples: 60_000,
        parameters: 10,
        parameters_frozen: 0,
        progress: None,
    }
}

#[tokio::test]
async fn timings_that_come_later_are_added_to_their_step_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "first").unwrap();
    let bare = |version, agent| match step(version, agent) {
        Record::Step(step) => Record::Step(StepRecord { timings: None, ..step }),
        other => other,
    };
    let late = |version: u64, agent, compute_s| {
        let timings = StepTimings { compute_s, ..timings() };
        let assignment = AssignmentId(version * 10 + u64::from(agent));
        Record::Timings(TimingsRecord { agent: AgentId(agent), assignment, timings })
    };
    store.records(vec![(JobId(1), bare(1, 1)), (JobId(1), bare(1, 2)), (JobId(1), step(2, 1))]);
    store.records(
        [late(1, 1, 0.5), late(1, 1, 9.0), late(2, 1, 9.0), late(3, 1, 9.0)].map(|late| (JobId(1), late)).into(),
    );
    store.records(vec![(JobId(2), late(1, 2, 9.0)), (JobId(1), round(1))]);
    store.flush().await;
    let page = store.page(JobId(1), 0, 100, true).await.unwrap();
    let times = page.steps.iter().map(|row| (row.id, row.timings.map(|times| times.compute_s)));
    assert_eq!(times.collect::<Vec<_>>(), [(1, Some(0.5)), (2, None), (3, Some(0.25))]);
    assert_eq!(page.rounds[0].id, 4);
    let json = serde_json::to_string(&page).unwrap();
    assert_eq!(serde_json::from_str::<RecordPage>(&json).unwrap(), page);
}

#[tokio::test]
async fn what_is_kept_comes_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "first").unwrap();
    store.new_job(StoredJob {
        view: job(1, JobState::Queued),
        job_file: "dataset = \"mnist\"".into(),
        kernel: [7; 32],
        author: Some("a signature".into()),
        weights: Some([8; 32]),
    });
    store.job(&job(1, JobState::Running));
    store.agent(AgentId(4), "pi", &Machine { cores: 4, ..Machine::default() });
    store.records(vec![(JobId(1), step(1, 1)), (JobId(1), round(1)), (JobId(2), round(9))]);
    store.records(vec![(JobId(1), batches(1)), (JobId(1), evaluation(1))]);
    store.flush().await;
    drop(store);

    let store = Store::open(folder.path(), "second").unwrap();
    let stored = store.find_job(JobId(1)).await.unwrap().unwrap();
    assert_eq!((stored.view, stored.kernel), (job(1, JobState::Running), [7; 32]));
    assert_eq!((stored.author.as_deref(), stored.weights), (Some("a signature"), Some([8; 32])));
    assert!(store.find_job(JobId(2)).await.unwrap().is_none());
    let agents = store.agents().await.unwrap();
    assert_eq!((agents[0].0, agents[0].1.as_str()), (AgentId(4), "pi"));
    assert_eq!(agents[0].2.as_ref().unwrap().cores, 4);

    store.records(vec![(JobId(1), round(2))]);
    store.flush().await;
    let page = store.page(JobId(1), 0, 100, true).await.unwrap();
    let times = |row: &StepRow| row.timings.map(|times| (times.compute_s, times.cpu_s, times.quota_cores));
    assert_eq!(
        page.steps.iter().map(|row| (row.id, times(row))).collect::<Vec<_>>(),
        [(1, Some((0.25, 0.0, Some(0.5))))]
    );
    assert_eq!(page.rounds.iter().map(|row| (row.id, row.version)).collect::<Vec<_>>(), [(2, 1), (6, 2)]);
    assert_eq!(page.batches.iter().map(|row| (row.agent, row.samples)).collect::<Vec<_>>(), [(1, 8), (2, 24)]);
    assert_eq!((page.evaluations[0].accuracy, page.evaluations[0].metrics["correct"]), (Some(0.875), 0.875));
    assert_eq!((page.next, page.more), (6, false));
}

#[tokio::test]
async fn pages_of_any_length_give_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "test").unwrap();
    let records =
        (1..=50u64).flat_map(|version| [step(version, 1), step(version, 2), batches(version), round(version)]);
    store.records(records.map(|record| (JobId(1), record)).collect());
    store.flush().await;
    let whole = store.page(JobId(1), 0, 5_000, true).await.unwrap();
    assert_eq!((whole.steps.len(), whole.batches.len(), whole.rounds.len()), (100, 100, 50));
    for rows in [2, 3, 7, 50, 99, 100, 101] {
        let mut joined = RecordPage::default();
        let mut since = 0;
        loop {
            let page = store.page(JobId(1), since, rows, true).await.unwrap();
            joined.steps.extend(page.steps);
            joined.batches.extend(page.batches);
            joined.rounds.extend(page.rounds);
            since = page.next;
            if !page.more {
                break;
            }
        }
        assert_eq!((&joined.steps, &joined.rounds), (&whole.steps, &whole.rounds), "{rows} rows");
        assert_eq!(joined.batches, whole.batches, "{rows} rows");
    }
}

fn refusal(folder: &Path) -> StoreError {
    match Store::open(folder, "test") {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

#[test]
fn a_second_hub_is_refused_by_the_name_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::open(folder.path(), "process 41 at 127.0.0.1:7700").unwrap();
    let error = refusal(folder.path());
    assert!(matches!(error, StoreError::InUse { .. }));
    assert!(error.to_string().contains("in use by process 41 at 127.0.0.1:7700"), "{error}");
    drop(first);
    Store::open(folder.path(), "process 42").unwrap();
}

#[test]
fn a_foreign_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sqlite");
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE recipes (id INTEGER); PRAGMA user_version = 1;")
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(refusal(folder.path()), StoreError::Foreign { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sqlite");
    std::fs::write(&path, "notes ".repeat(100)).unwrap();
    assert!(matches!(refusal(folder.path()), StoreError::Damaged { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), "notes ".repeat(100).into_bytes());
}

#[tokio::test]
async fn a_damaged_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "test").unwrap();
    store.records((1..2_000).map(|version| (JobId(1), step(version, 1))).collect());
    store.flush().await;
    drop(store);
    let path = folder.path().join("hub.sqlite");
    Connection::open(&path).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8_192].fill(0xA5);
    std::fs::write(&path, &bytes).unwrap();
    let error = refusal(folder.path());
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn tables_of_another_version_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path(), "test").unwrap());
    let path = folder.path().join("hub.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA user_version = 9; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    assert!(matches!(refusal(folder.path()), StoreError::Version { found: 9, .. }));
}

#[test]
fn a_job_that_ran_when_the_hub_ended_is_interrupted() {
    let view = interrupted(job(1, JobState::Running)).unwrap();
    assert_eq!(view.state, JobState::Interrupted);
    assert!(view.message.contains("last checkpoint"));
    assert_eq!(interrupted(job(1, JobState::Done)), None);
}
