-- What has broken replicas before. Each case lives in a schema of its own name.
-- What follows `case` is there when the pipeline starts; each `round` is one transaction while it runs.

-- case: text_t_and_f
CREATE TABLE flags (id int PRIMARY KEY, t text, b boolean);
INSERT INTO flags VALUES (1, 't', true), (2, 'f', false), (3, 'true', true), (4, 'false', false), (5, '', null);
-- round
UPDATE flags SET t = 'f' WHERE id = 1;
-- round
INSERT INTO flags VALUES (6, 't', null), (7, 'f', true);


-- case: updates_in_one_transaction
CREATE TABLE twice (id int PRIMARY KEY, v text, n int);
INSERT INTO twice SELECT n, 'first', n FROM generate_series(1, 9) n;
-- round
UPDATE twice SET v = 'second' WHERE id = 1;
UPDATE twice SET v = 'third' WHERE id = 1;
UPDATE twice SET n = 0 WHERE id = 2;
UPDATE twice SET v = 'third' WHERE id = 2;
UPDATE twice SET v = 'gone' WHERE id = 3;
DELETE FROM twice WHERE id = 3;
DELETE FROM twice WHERE id = 4;
INSERT INTO twice VALUES (4, 'again', 4);
INSERT INTO twice VALUES (10, 'new', 1);
UPDATE twice SET n = 2 WHERE id = 10;
DELETE FROM twice WHERE id = 10;
INSERT INTO twice VALUES (11, 'new', 1);
UPDATE twice SET n = 2 WHERE id = 11;
-- round
UPDATE twice SET v = v || '!';
UPDATE twice SET n = n + 1;


-- case: shared_lsn
CREATE TABLE copied (id int PRIMARY KEY);
CREATE TABLE copied_keyless (n int);
ALTER TABLE copied_keyless REPLICA IDENTITY FULL;
COPY copied FROM PROGRAM 'seq 1 300';
-- round
COPY copied FROM PROGRAM 'seq 301 1500';
COPY copied_keyless FROM PROGRAM 'seq 1 500';
-- round
COPY copied_keyless FROM PROGRAM 'seq 1 500';
INSERT INTO copied SELECT generate_series(1501, 2000);


-- case: empty_transactions
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1);
-- round
SELECT txid_current();
-- round
SAVEPOINT s;
UPDATE t SET v = 99;
ROLLBACK TO s;
SELECT txid_current();
-- round
CREATE TEMPORARY TABLE IF NOT EXISTS mine (n int);
INSERT INTO mine VALUES (1);
-- round
UPDATE t SET v = 2;
SELECT txid_current();


-- case: many
DO $$ BEGIN FOR i IN 1..300 LOOP
    EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', i);
    EXECUTE format('INSERT INTO t%s VALUES (%s, ''one'')', i, i);
END LOOP; END $$;
-- round
UPDATE t7 SET v = 'two';
INSERT INTO t150 VALUES (0, 'new');
-- round
DELETE FROM t300;
UPDATE t7 SET v = 'three';


-- case: created_later
CREATE TABLE there_from_the_start (id int PRIMARY KEY);
-- round
CREATE TABLE late (id int PRIMARY KEY, v text);
INSERT INTO late SELECT n, 'early' FROM generate_series(1, 50) n;
-- round
INSERT INTO late VALUES (51, 'new');
UPDATE late SET v = 'changed' WHERE id < 10;
DELETE FROM late WHERE id = 20;
-- round
UPDATE late SET id = id + 100 WHERE id > 40;


-- case: Quoted Case
CREATE TABLE "Order ""Lines" ("Id" int, "from" text, "we""ird" int, "größe 🌊" real, PRIMARY KEY ("Id", "from"));
INSERT INTO "Order ""Lines" VALUES (1, 'a', 1, 0.5), (2, 'b', 2, -2.25);
-- round
UPDATE "Order ""Lines" SET "we""ird" = 7 WHERE "Id" = 1;
INSERT INTO "Order ""Lines" VALUES (3, 'c', 3, 1);
-- round
DELETE FROM "Order ""Lines" WHERE "from" = 'b';
UPDATE "Order ""Lines" SET "from" = 'z' WHERE "Id" = 3;


-- case: public
CREATE TABLE same_name (id int PRIMARY KEY, v text);
INSERT INTO same_name VALUES (1, 'public');
-- round
INSERT INTO same_name VALUES (2, 'public');


-- case: other
CREATE TABLE same_name (id int PRIMARY KEY, v text);
INSERT INTO same_name VALUES (1, 'other');
-- round
INSERT INTO same_name VALUES (2, 'other');
-- round
DELETE FROM same_name WHERE id = 1;


-- case: without_rows
CREATE TABLE never (id int PRIMARY KEY, v text);
CREATE TABLE not_yet (id int PRIMARY KEY, v text);
-- round
INSERT INTO not_yet VALUES (1, 'first');


-- case: without_key
CREATE TABLE whole (n int, t text, x float8);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (1, 'same', 1.5), (1, 'same', 1.5), (1, 'same', 1.5), (2, null, null), (2, null, null);
CREATE TABLE only_inserts (n int, t text);
INSERT INTO only_inserts VALUES (1, 'same'), (1, 'same'), (null, null);
-- round
DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole WHERE n = 1);
UPDATE whole SET t = 'other' WHERE ctid = (SELECT min(ctid) FROM whole WHERE n = 1);
INSERT INTO only_inserts VALUES (1, 'same'), (2, 'new');
-- round
DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole WHERE n = 2);
INSERT INTO whole VALUES (1, 'same', 1.5);
INSERT INTO only_inserts VALUES (1, 'same');


-- case: partitioned
CREATE TABLE root (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE north PARTITION OF root FOR VALUES IN ('north');
CREATE TABLE south PARTITION OF root FOR VALUES IN ('south') PARTITION BY RANGE (id);
CREATE TABLE south_low PARTITION OF south FOR VALUES FROM (0) TO (100);
INSERT INTO root SELECT n, CASE n % 2 WHEN 0 THEN 'north' ELSE 'south' END, 'v' FROM generate_series(1, 40) n;
CREATE TABLE hollow (id int PRIMARY KEY) PARTITION BY RANGE (id);
-- round
UPDATE root SET v = 'w' WHERE id < 10;
UPDATE root SET region = 'south' WHERE id = 4;
DELETE FROM root WHERE id = 6;
-- round
CREATE TABLE west PARTITION OF root FOR VALUES IN ('west');
INSERT INTO root VALUES (1, 'west', 'new');
-- round
UPDATE root SET region = 'west' WHERE id = 5;
INSERT INTO north VALUES (99, 'north', 'by the partition');


-- case: savepoints
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
-- round
SAVEPOINT a;
INSERT INTO t VALUES (3, 'lost');
SAVEPOINT b;
UPDATE t SET v = 'lost';
RELEASE b;
ROLLBACK TO a;
INSERT INTO t VALUES (4, 'kept');
SAVEPOINT c;
UPDATE t SET v = 'kept' WHERE id = 1;
RELEASE c;
-- round
SAVEPOINT a;
DELETE FROM t;
ROLLBACK TO a;
INSERT INTO t VALUES (3, 'now');


-- case: truncated
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY REFERENCES parent);
CREATE TABLE alone (id int PRIMARY KEY, v text);
CREATE TABLE keyless (n int);
INSERT INTO parent SELECT generate_series(1, 50);
INSERT INTO child SELECT generate_series(1, 50);
INSERT INTO alone SELECT n, 'old' FROM generate_series(1, 50) n;
INSERT INTO keyless VALUES (1), (1);
-- round
TRUNCATE parent CASCADE;
INSERT INTO parent VALUES (1), (2);
TRUNCATE keyless;
INSERT INTO keyless VALUES (2);
-- round
INSERT INTO alone VALUES (51, 'lost');
TRUNCATE alone;
INSERT INTO alone VALUES (1, 'new');
UPDATE alone SET v = 'n';
-- round
INSERT INTO child VALUES (1);
INSERT INTO keyless VALUES (2), (3);


-- case: changed_keys
CREATE TABLE single (id int PRIMARY KEY, v text);
INSERT INTO single SELECT n, n FROM generate_series(1, 20) n;
CREATE TABLE composite (v text, a int, b text, PRIMARY KEY (b, a));
INSERT INTO composite VALUES ('x', 1, 'one');
CREATE TABLE big_rows (id int PRIMARY KEY, big text, n int);
ALTER TABLE big_rows ALTER big SET STORAGE EXTERNAL;
INSERT INTO big_rows SELECT n, repeat('0123456789', 1000), n FROM generate_series(1, 4) n;
-- round
UPDATE single SET id = id + 100;
UPDATE composite SET a = 2, b = 'two';
UPDATE big_rows SET id = id + 10;
-- round
UPDATE single SET id = 0 WHERE id = 101;
UPDATE single SET id = 101 WHERE id = 102;
UPDATE single SET id = 102 WHERE id = 0;
INSERT INTO single VALUES (1, 'new');
UPDATE big_rows SET id = id + 10, n = 0;
UPDATE big_rows SET n = 1 WHERE id = 21;


-- case: nullable_column_added
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
-- round
ALTER TABLE t ADD COLUMN extra text;
UPDATE t SET extra = 'x' WHERE id = 1;
-- round
INSERT INTO t VALUES (3, 'three', 'y');
ALTER TABLE t ADD COLUMN more int[];
UPDATE t SET more = '{1}' WHERE id = 3;


-- case: column_with_default_added
CREATE TABLE constant (id int PRIMARY KEY);
INSERT INTO constant VALUES (1), (2);
CREATE TABLE volatile (id int PRIMARY KEY);
INSERT INTO volatile VALUES (1), (2);
CREATE TABLE default_gone (id int PRIMARY KEY);
INSERT INTO default_gone VALUES (1), (2);
-- round
ALTER TABLE constant ADD COLUMN c text NOT NULL DEFAULT 'was here';
INSERT INTO constant VALUES (3, 'x');
ALTER TABLE volatile ADD COLUMN u uuid DEFAULT gen_random_uuid();
INSERT INTO volatile VALUES (3);
ALTER TABLE default_gone ADD COLUMN u uuid NOT NULL DEFAULT gen_random_uuid();
ALTER TABLE default_gone ALTER u DROP DEFAULT;
DELETE FROM default_gone WHERE id = 1;
-- round
UPDATE constant SET c = 'y' WHERE id = 1;
UPDATE volatile SET u = null WHERE id = 2;


-- case: altered_and_never_changed_again
CREATE TABLE with_default (id int PRIMARY KEY);
INSERT INTO with_default VALUES (1), (2);
CREATE TABLE nullable (id int PRIMARY KEY);
INSERT INTO nullable VALUES (1), (2);
CREATE TABLE retyped (id int PRIMARY KEY, v int);
INSERT INTO retyped VALUES (1, 1), (2, 2);
CREATE TABLE renamed (id int PRIMARY KEY, v int);
INSERT INTO renamed VALUES (1, 1), (2, 2);
-- round
ALTER TABLE with_default ADD COLUMN c int DEFAULT 5;
ALTER TABLE nullable ADD COLUMN c int;
ALTER TABLE retyped ALTER v TYPE text USING 'no. ' || v;
ALTER TABLE renamed RENAME v TO w;


-- case: column_dropped
CREATE TABLE t (id int PRIMARY KEY, a int, b text);
INSERT INTO t VALUES (1, 1, 'b'), (2, 2, 'c');
-- round
ALTER TABLE t DROP COLUMN a;
INSERT INTO t VALUES (3, 'd');
-- round
UPDATE t SET b = 'z' WHERE id = 1;


-- case: column_renamed
CREATE TABLE t (id int PRIMARY KEY, old int, b text);
INSERT INTO t VALUES (1, 1, 'b'), (2, 2, 'c');
-- round
ALTER TABLE t RENAME old TO new;
UPDATE t SET new = 7 WHERE id = 1;
-- round
INSERT INTO t VALUES (3, 3);


-- case: type_changed
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2), (3, null);
-- round
ALTER TABLE t ALTER v TYPE text USING 'no. ' || v;
INSERT INTO t VALUES (4, 'four');
-- round
UPDATE t SET v = 'one' WHERE id = 1;


-- case: enum_extended
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, m mood, all_of mood[]);
INSERT INTO t VALUES (1, 'sad', '{sad,ok}'), (2, 'ok', '{}');
-- round
ALTER TYPE mood ADD VALUE 'happy';
-- round
INSERT INTO t VALUES (3, 'happy', '{happy,sad}');
UPDATE t SET m = 'happy' WHERE id = 1;
-- round
ALTER TYPE mood ADD VALUE 'in between' BEFORE 'ok';
-- round
UPDATE t SET m = 'in between' WHERE id = 2;


-- case: enum_label_renamed
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, m mood, all_of mood[]);
INSERT INTO t VALUES (1, 'sad', '{sad,ok}'), (2, 'ok', '{}');
-- round
ALTER TYPE mood RENAME VALUE 'ok' TO 'fine';
INSERT INTO t VALUES (3, 'fine', null);


-- case: table_made_again
CREATE TABLE same (id int PRIMARY KEY, v text);
INSERT INTO same SELECT n, 'old' FROM generate_series(1, 9) n;
CREATE TABLE different (id int PRIMARY KEY, v text);
INSERT INTO different VALUES (1, 'old'), (2, 'old');
CREATE TABLE silent (id int PRIMARY KEY, v text);
INSERT INTO silent VALUES (1, 'old'), (2, 'old');
-- round
DROP TABLE same;
CREATE TABLE same (id int PRIMARY KEY, v text);
INSERT INTO same VALUES (1, 'new');
DROP TABLE different;
CREATE TABLE different (id text PRIMARY KEY, w int);
INSERT INTO different VALUES ('a', 1);
DROP TABLE silent;
CREATE TABLE silent (id int PRIMARY KEY, v text);
INSERT INTO silent VALUES (2, 'new');
-- round
INSERT INTO same VALUES (2, 'new');
-- round
UPDATE same SET v = 'newer' WHERE id = 1;
INSERT INTO different VALUES ('b', 2);


-- case: column_made_again
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1), (2, 2);
-- round
ALTER TABLE t DROP COLUMN v;
ALTER TABLE t ADD COLUMN v int;
INSERT INTO t VALUES (3, 3);
-- round
UPDATE t SET v = 4 WHERE id = 1;


-- case: altered_within_a_transaction
CREATE TABLE t (id int PRIMARY KEY, a int);
INSERT INTO t VALUES (1, 1), (2, 2);
-- round
INSERT INTO t VALUES (3, 3);
ALTER TABLE t ADD COLUMN b int;
INSERT INTO t VALUES (4, 4, 4);
ALTER TABLE t DROP COLUMN a;
UPDATE t SET b = 1 WHERE id = 1;
INSERT INTO t VALUES (5, 5);
-- round
UPDATE t SET b = 6 WHERE id = 3;


-- case: table_renamed
CREATE TABLE before (id int PRIMARY KEY, v text);
INSERT INTO before VALUES (1, 'one');
-- round
ALTER TABLE before RENAME TO after;
INSERT INTO after VALUES (2, 'two');
-- round
DELETE FROM after WHERE id = 1;


-- case: key_replaced
CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- round
ALTER TABLE t DROP CONSTRAINT t_pkey;
ALTER TABLE t ADD PRIMARY KEY (code);
UPDATE t SET id = 7 WHERE code = 'a';
-- round
INSERT INTO t VALUES (7, 'c');
DELETE FROM t WHERE code = 'b';


-- case: unchanged_toast
CREATE TABLE t (id int PRIMARY KEY, n int, big text, more text);
CREATE TABLE whole (id int PRIMARY KEY, n int, big text);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT n, n, repeat('big' || n, 2000), repeat('more', 2000) FROM generate_series(1, 6) n;
INSERT INTO whole SELECT n, n, repeat('big' || n, 2000) FROM generate_series(1, 6) n;
-- round
UPDATE t SET n = 10;
UPDATE t SET n = 11, more = 'short' WHERE id = 2;
UPDATE whole SET n = 10;
-- round
UPDATE t SET big = null WHERE id = 1;
UPDATE t SET n = 12 WHERE id = 1;
UPDATE t SET big = repeat('changed', 2000) WHERE id = 3;
UPDATE t SET n = 13 WHERE id = 3;
UPDATE whole SET big = repeat('changed', 2000) WHERE id = 1;
UPDATE whole SET n = 14;
DELETE FROM t WHERE id = 6;
INSERT INTO t VALUES (6, 6, repeat('new', 3000), null);
UPDATE t SET n = 15 WHERE id = 6;
-- round
UPDATE t SET n = n + 1;
UPDATE whole SET n = n + 1 WHERE id > 2;
