//! What a job leaves behind, as files on the user's machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::client::{ClientError, HubClient};
use crate::view::{self, RecordPage};

/// Writes a job's weights in safetensors; the file appears whole or not at all. Returns its length.
///
/// # Errors
/// [`ClientError`]: the hub's reason, or the file's.
pub fn weights(client: &HubClient, job: u64, path: &Path) -> Result<u64, ClientError> {
    let mut weights = client.weights(job)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = path.with_file_name(name);
    let file = |cause| ClientError::File { what: "cannot write", path: path.to_owned(), cause };
    let mut out = File::create(&temporary).map_err(file)?;
    let copied = std::io::copy(&mut weights, &mut out).and_then(|bytes| out.sync_all().map(|()| bytes));
    let renamed = copied.and_then(|bytes| std::fs::rename(&temporary, path).map(|()| bytes));
    renamed.map_err(|cause| {
        std::fs::remove_file(&temporary).ok();
        file(cause)
    })
}

/// Writes a job's records as `steps.csv`, `rounds.csv`, `evaluations.csv` and `batches.csv`. Returns how many.
///
/// # Errors
/// [`ClientError`]: the hub's reason, or a file's.
pub fn csv(client: &HubClient, job: u64, folder: &Path) -> Result<u64, ClientError> {
    let failed = |cause| ClientError::File { what: "cannot write into", path: folder.to_owned(), cause };
    let mut page = client.records(job, 0)?;
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut tables = Tables::create(folder).map_err(failed)?;
    let mut rows = 0;
    loop {
        rows += tables.write(&page).map_err(failed)?;
        if !page.more {
            break;
        }
        page = client.records(job, page.next)?;
    }
    tables.finish().map_err(failed)?;
    Ok(rows)
}

/// Records as `steps.csv`, `rounds.csv`, `evaluations.csv` and `batches.csv` in one folder.
#[derive(Debug)]
pub struct Tables {
    steps: BufWriter<File>,
    rounds: BufWriter<File>,
    evaluations: BufWriter<File>,
    batches: BufWriter<File>,
}

/// A text as one CSV field.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn or_empty(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

impl Tables {
    /// Empty tables in a folder that exists, in place of earlier ones.
    ///
    /// # Errors
    /// The system's, if a file cannot be written.
    pub fn create(folder: &Path) -> std::io::Result<Tables> {
        let create = |name: &str, header: &str| {
            let mut file = BufWriter::new(File::create(folder.join(name))?);
            writeln!(file, "{header}")?;
            Ok::<_, std::io::Error>(file)
        };
        Ok(Tables {
            steps: create(
                "steps.csv",
                "wall_s,round,version,agent,assignment,samples,loss,staleness,wait_s,load_s,compute_s,encode_s,send_s,\
                 cpu_s,throttled_s,quota_cores,sustained_s,warm_up,spans",
            )?,
            rounds: create(
                "rounds.csv",
                "wall_s,training_s,version,epoch,loss,samples,updates,learning_rate,gradient_norm",
            )?,
            evaluations: create("evaluations.csv", "wall_s,training_s,version,epoch,samples,loss,accuracy,metrics")?,
            batches: create("batches.csv", "wall_s,version,agent,samples,reason")?,
        })
    }

    /// Appends the records of a page. Returns how many.
    ///
    /// # Errors
    /// The system's, if a file cannot be written.
    pub fn write(&mut self, page: &RecordPage) -> std::io::Result<u64> {
        for row in &page.steps {
            let timings = row.timings.as_ref();
            let times = timings.map(|row| {
                [row.wait_s, row.load_s, row.compute_s, row.encode_s, row.send_s, row.cpu_s, row.throttled_s]
            });
            let times = times.map_or([const { None }; 7], |times| times.map(Some)).map(or_empty).join(",");
            writeln!(
                self.steps,
                "{},{},{},{},{},{},{},{},{times},{},{},{},{}",
                row.wall_s,
                row.round,
                row.version,
                row.agent,
                row.assignment,
                row.samples,
                row.loss,
                row.staleness,
                or_empty(timings.and_then(|timings| timings.quota_cores)),
                or_empty(timings.map(|timings| timings.sustained_s)),
                timings.map_or_else(String::new, |timings| timings.warm_up.to_string()),
                view::format_spans(&row.spans),
            )?;
        }
        for row in &page.rounds {
            writeln!(
                self.rounds,
                "{},{},{},{},{},{},{},{},{}",
                row.wall_s,
                row.training_s,
                row.version,
                row.epoch,
                row.loss,
                row.samples,
                row.updates,
                row.learning_rate,
                row.gradient_norm,
            )?;
        }
        for row in &page.evaluations {
            let metrics: Vec<String> = row.metrics.iter().map(|(name, mean)| format!("{name}={mean}")).collect();
            writeln!(
                self.evaluations,
                "{},{},{},{},{},{},{},{}",
                row.wall_s,
                row.training_s,
                row.version,
                row.epoch,
                row.samples,
                row.loss,
                or_empty(row.accuracy),
                quoted(&metrics.join(" ")),
            )?;
        }
        for row in &page.batches {
            let reason = quoted(&row.reason);
            writeln!(self.batches, "{},{},{},{},{reason}", row.wall_s, row.version, row.agent, row.samples)?;
        }
        Ok((page.steps.len() + page.rounds.len() + page.evaluations.len() + page.batches.len()) as u64)
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// The system's, if a file cannot be written.
    pub fn finish(self) -> std::io::Result<()> {
        for mut file in [self.steps, self.rounds, self.evaluations, self.batches] {
            file.flush()?;
        }
        Ok(())
    }
}
