//! A run as files: the tables that `omnilearn-hub export --csv` writes of a real one, a histogram and the figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use omnilearn_hub::export::Tables;
use omnilearn_hub::view::RecordPage;
use omnilearn_hub_core::Record;
use omnilearn_simulator::Summary;

/// Files of one run in one folder.
pub(crate) struct Files {
    folder: PathBuf,
    tables: Tables,
    records: u64,
}

impl Files {
    pub(crate) fn create(folder: &Path) -> anyhow::Result<Files> {
        let create = || {
            std::fs::create_dir_all(folder)?;
            Tables::create(folder)
        };
        let tables = create().with_context(|| format!("cannot write into {}", folder.display()))?;
        Ok(Files { folder: folder.to_owned(), tables, records: 0 })
    }

    pub(crate) fn record(&mut self, record: &Record) -> std::io::Result<()> {
        let mut page = RecordPage::default();
        page.push(self.records, record);
        self.records += 1;
        self.tables.write(&page).map(drop)
    }

    /// Writes what is still in memory, `staleness.csv` and `summary.json`.
    pub(crate) fn finish(self, summary: &Summary, staleness: &BTreeMap<u64, u64>) -> anyhow::Result<()> {
        let Files { folder, tables, .. } = self;
        let json = serde_json::to_string_pretty(summary)?;
        let rows = staleness.iter().map(|(staleness, updates)| format!("{staleness},{updates}\n"));
        let histogram: String = std::iter::once("staleness,updates\n".to_owned()).chain(rows).collect();
        let write = || {
            tables.finish()?;
            std::fs::write(folder.join("staleness.csv"), histogram)?;
            std::fs::write(folder.join("summary.json"), json + "\n")
        };
        write().with_context(|| format!("cannot write into {}", folder.display()))
    }
}
