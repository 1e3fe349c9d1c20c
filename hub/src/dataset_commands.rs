//! What `omnilearn-hub dataset` does.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omnilearn_datasets::import::{self, Progress};
use omnilearn_datasets::library::Found;
use omnilearn_datasets::manifest::Manifest;
use omnilearn_datasets::{Input, Library, Target, to_hex};
use omnilearn_hub::DATASETS;
use serde_json::{Value, json};

use crate::dataset_cli::{Add, DatasetCommand, List, Remove, StateFolder, Verify};
use crate::{print, state_folder};

/// How often a log gets a line; a terminal is redrawn more often.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Carries out a command.
pub(crate) fn run(command: &DatasetCommand) -> anyhow::Result<ExitCode> {
    match command {
        DatasetCommand::Add(add) => self::add(add),
        DatasetCommand::List(list) => self::list(list),
        DatasetCommand::Verify(verify) => self::verify(verify),
        DatasetCommand::Remove(remove) => self::remove(remove),
    }
}

fn library(state: &StateFolder) -> Library {
    Library::at(&state_folder(state.state.as_ref()).join(DATASETS))
}

/// Shows how far something is: a bar on a terminal, a line now and then elsewhere.
struct Meter {
    bar: Option<ProgressBar>,
    line_due: Instant,
}

impl Meter {
    fn new() -> Meter {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Meter { bar, line_due: Instant::now() + LINE_EVERY }
    }

    fn show(&mut self, Progress { done, total, what }: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(total.unwrap_or(done));
            bar.set_message(what);
            bar.set_position(done);
        } else if self.line_due <= Instant::now() {
            self.line_due = Instant::now() + LINE_EVERY;
            match total {
                Some(total) => eprintln!("{done} of {total} {what}"),
                None => eprintln!("{done} {what}"),
            }
        }
    }

    fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn add(add: &Add) -> anyhow::Result<ExitCode> {
    let library = library(&add.state);
    let mut meter = Meter::new();
    let imported =
        import::import(&library, &add.name, &add.sources, &add.options(), &mut |progress| meter.show(progress));
    meter.end();
    let imported = imported?;
    let Found { manifest, digest, .. } = &imported.added.found;
    if imported.added.was_there {
        eprintln!("{} was here already, with the same content", add.name);
    }
    for note in &imported.notes {
        eprintln!("note: {note}");
    }
    let skipped = &imported.skipped;
    if skipped.count > 0 {
        eprintln!("{} could not be read and were left out, such as", skipped.count);
        skipped.first.iter().for_each(|first| eprintln!("  {first}"));
    }
    print(&format!("{}\n", summary(manifest)))?;
    eprintln!("digest {}; a job uses it with `dataset = \"{}\"`", to_hex(digest), add.name);
    Ok(ExitCode::SUCCESS)
}

/// One line on a data set.
fn summary(manifest: &Manifest) -> String {
    let Manifest { name, form, train, test, groups, .. } = manifest;
    let samples = match &form.input {
        Input::Array { element, shape, .. } => format!("samples {element:?} {shape:?}").to_lowercase(),
        Input::Tokens { vocabulary, .. } => format!("tokens, {vocabulary} different"),
    };
    let target = match &form.target {
        Target::None {} => String::new(),
        Target::Classes { count } => format!(", {count} classes"),
        Target::Values { shape } => format!(", targets f32 {shape:?}"),
    };
    let keys = if form.grouped { format!(", {} keys", groups.len()) } else { String::new() };
    let size = human(manifest.bytes());
    format!("{name}: {} to learn from, {} to test with, {samples}{target}{keys}, {size}", train.length, test.length)
}

fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

fn list(list: &List) -> anyhow::Result<ExitCode> {
    let library = library(&list.state);
    let names = library.list()?;
    let (mut lines, mut values) = (Vec::new(), Vec::new());
    for name in &names {
        match library.find(name) {
            Ok(Some(Found { manifest, digest, .. })) => {
                lines.push(summary(&manifest));
                values.push(as_json(&manifest, &digest));
            }
            Ok(None) => {} // removed this moment
            Err(error) => {
                lines.push(format!("{name}: {error}"));
                values.push(json!({ "name": name, "problem": error.to_string() }));
            }
        }
    }
    if list.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&values)?))?;
    } else if lines.is_empty() {
        eprintln!(
            "no data sets were added; `omnilearn-hub dataset add --help` shows how. Every agent may have fashion-mnist and mnist of its own."
        );
    } else {
        print(&format!("{}\n", lines.join("\n")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(manifest: &Manifest, digest: &[u8; 32]) -> Value {
    json!({
        "name": manifest.name,
        "digest": to_hex(digest),
        "form": manifest.form,
        "train": manifest.train.length,
        "test": manifest.test.length,
        "bytes": manifest.bytes(),
        "classes": manifest.classes,
        "groups": manifest.groups.len(),
    })
}

fn verify(verify: &Verify) -> anyhow::Result<ExitCode> {
    let library = library(&verify.state);
    let names = match &verify.name {
        Some(name) => vec![name.clone()],
        None => library.list()?,
    };
    let mut sound = true;
    for name in &names {
        let started = Instant::now();
        match library.verify(name, &mut |bytes| {
            if started.elapsed() > LINE_EVERY {
                eprintln!("{name}: {} are sound so far", human(bytes));
            }
        }) {
            Ok(found) => print(&format!("{name}: sound, {}\n", human(found.manifest.bytes())))?,
            Err(error) => {
                sound = false;
                eprintln!("omnilearn-hub: {error}");
            }
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(crate::FAILED) })
}

fn remove(remove: &Remove) -> anyhow::Result<ExitCode> {
    let folder: &Path = &state_folder(remove.state.state.as_ref()).join(DATASETS);
    let bytes = Library::at(folder).remove(&remove.name).context("nothing was removed")?;
    eprintln!("{}: removed, {} are free again", remove.name, human(bytes));
    Ok(ExitCode::SUCCESS)
}
