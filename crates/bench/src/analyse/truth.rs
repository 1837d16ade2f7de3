//! The points that tasks of stock servers need, each with the reader in the server's sources from
//! which it was derived. A point is the function that has the call of the allocator; in Redis the
//! exported one, for Debian's build has no other symbols.
//!
//! How they were derived: from the entry's source every function was followed that it calls on the
//! way of the load; each pointer read on it was traced to the one place of the sources that
//! allocates what it points to. What the task allocates itself is not needed.

/// A point, and what of the task reads what it allocates.
pub type Point = (&'static str, &'static str);

/// LevelDB 1.23's `BuildTable` (db/builder.cc): writes a memtable to a table, then opens that table
/// by the cache of tables to see whether it is usable. Its first call in a database: later ones
/// need `DBImpl::MakeRoomForWrite`, whose memtable is full then, and the caches' entries.
///
/// The port moves the blocks, the memtables, options and policy only: it makes the iterator in the
/// orbit, and leaves the opening of the table to main, so that the caches stay main's.
pub const LEVELDB: [Point; 6] = [
    ("leveldb::Arena::AllocateNewBlock", "iter->key(): nodes and entries of the skip list"),
    ("leveldb::DB::Open", "options, dbname: members of DBImpl; the first MemTable"),
    ("leveldb::NewBloomFilterPolicy", "TableBuilder's FilterBlockBuilder: CreateFilter"),
    ("leveldb::MemTable::NewIterator", "iter itself, made by the caller, WriteLevel0Table"),
    ("leveldb::DBImpl::DBImpl", "table_cache->NewIterator: the TableCache"),
    ("leveldb::NewLRUCache", "its cache of tables, and options.block_cache of blocks: Lookup, Insert"),
];

/// Redis 7.0's `slowlogPushEntryIfNeeded(c, argv, argc, duration)` (src/slowlog.c).
pub const SLOW: [Point; 10] = [
    ("createClient", "slowlogCreateEntry: c->peerid, c->name"),
    ("loadServerConfigFromString", "getClientPeerId of a client on a unix socket: server.unixsocket"),
    ("processMultibulkBuffer", "argv: the array c->argv"),
    ("createObject", "argv[j]->type and encoding of long arguments"),
    ("createEmbeddedStringObject", "argv[j] and its text, of short arguments"),
    ("_sdsnewlen", "argv[j]->ptr of long arguments, c->name: dupStringObject, sdsdup"),
    ("sdsResize", "argv[j]->ptr after the trimming of its free space by a command that stores it"),
    ("listCreate", "server.slowlog: listAddNodeHead, listLength, listLast"),
    ("listAddNodeHead", "nodes of former calls: the head's prev, listDelNode of the last"),
    ("slowlogCreateEntry", "entries of former calls: slowlogFreeEntry of the last"),
];

/// Redis 7.0's `rdbSave(req, filename, rsi)` (src/rdb.c), with a key of each type and encoding of
/// the load.
pub const SAVE: [Point; 25] = [
    ("initServer", "rdbSaveDb: server.db"),
    ("dictCreate", "rdbSaveDb: db->dict, db->expires; rdbSaveObject: sets, hashes and sorted sets as dicts"),
    ("dictExpand", "dictNext: ht_table of dicts that were given a size"),
    ("_dictExpand", "dictNext: ht_table of dicts that grew"),
    ("dictAddRaw", "dictNext, getExpire: entries"),
    ("createObject", "rdbSaveObjectType, rdbSaveObject: values"),
    ("createEmbeddedStringObject", "rdbSaveStringObject: short strings"),
    ("_sdsnewlen", "rdbSaveKeyValuePair: keys; long strings; elements of sets, hashes and sorted sets"),
    ("sdsResize", "rdbSaveStringObject: long strings, trimmed as they were stored"),
    ("quicklistCreate", "rdbSaveObject: ql->head, ql->len"),
    ("quicklistPushTail", "rdbSaveObject: node->entry, node->next"),
    ("lpNew", "rdbSaveObject: lpBytes of listpacks of nodes, hashes, sorted sets, streams"),
    ("intsetAdd", "rdbSaveObject: intsetBlobLen"),
    ("zsetConvert", "rdbSaveObject: zs->zsl, zs->dict"),
    ("zslCreate", "rdbSaveObject: zsl->tail, zsl->length"),
    ("zslInsert", "rdbSaveObject: zn->ele, zn->score, zn->backward"),
    ("streamNew", "rdbSaveObject: s->rax, s->last_id"),
    ("raxNew", "raxStart, raxSize of s->rax"),
    ("raxGenericInsert", "raxNext: nodes with children"),
    ("raxCompressNode", "raxNext: compressed nodes"),
    ("functionsLibCtxCreate", "rdbSaveFunctions: functionsLibGet"),
    ("functionsCreateWithLibraryCtx", "rdbSaveFunctions: li->code"),
    ("listCreate", "moduleFireServerEvent, by startSaving: RedisModule_EventListeners"),
    ("initConfigValues", "rename to filename: server.rdb_filename, a default"),
    ("loadServerConfigFromString", "serverLog: server.logfile, as set"),
];
