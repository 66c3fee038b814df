-- what is there when capture begins; the rows of `orders` come as a snapshot
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);

CREATE TABLE orders (
    id integer PRIMARY KEY, customer text NOT NULL, total numeric(12,2) DEFAULT 1.50,
    at timestamptz DEFAULT '2024-01-01 00:00+00', note text, flag boolean NOT NULL DEFAULT true
);
INSERT INTO orders VALUES (1, 'ann', 12.50, '2024-02-29 23:59:59.123456+00', NULL), (2, 'bob', NULL, NULL, 'x');

CREATE TABLE pairs (b text, a integer, v text, PRIMARY KEY (a, b));
CREATE TABLE nokey (v integer, w text);
ALTER TABLE nokey REPLICA IDENTITY FULL;
CREATE TABLE fullid (id integer PRIMARY KEY, v text, big text);
ALTER TABLE fullid REPLICA IDENTITY FULL;
CREATE TABLE toasty (id integer PRIMARY KEY, big text, v integer);
ALTER TABLE toasty ALTER big SET STORAGE EXTERNAL;
CREATE TABLE "Odd.name" ("Sp ace" integer PRIMARY KEY, "ü-x" text);

CREATE TABLE types (
    id bigint PRIMARY KEY, b boolean, i2 smallint, i4 integer, i8 bigint, o oid, r real, d double precision,
    n122 numeric(12,2), n3810 numeric(38,10), n numeric, nneg numeric(5,-2), n50 numeric(50,2),
    t text, vc varchar(20), c char(5), by bytea, u uuid,
    da date, ti time, ti3 time(3), tiz timetz, ts timestamp, ts0 timestamp(0), ts3 timestamp(3), tsz timestamptz,
    tsz0 timestamptz(0), iv interval, j json, jb jsonb, m mood,
    ia integer[], ta text[], na numeric(12,2)[], nna numeric[], da_a date[], tsa timestamp[], tsza timestamptz[],
    ba bytea[], boola boolean[], fa float8[], ua uuid[], jba jsonb[], iva interval[], tia time[], ma mood[],
    inet inet, cidr cidr, mac macaddr, bit1 bit(1), bit8 bit(10), vb bit varying(12), po point, bx box, mny money,
    r4 int4range, rn numrange, rts tsrange, rtsz tstzrange, rd daterange, tv tsvector, reg regclass, p pair,
    dom positive, lsn pg_lsn, ch "char", nm name, mr int4multirange
);
CREATE TABLE edges (
    id integer PRIMARY KEY, n numeric, n2 numeric, vb bit varying(12), b10 bit(10), bv bit varying, tz timetz,
    iv interval, t1 timestamptz(1), tt1 timetz(1), da date, ts timestamp, ts2 timestamp(2), tsz timestamptz, ti time,
    f real, d double precision
);
CREATE TABLE unsent (
    id integer PRIMARY KEY, ia int[], ta text[], ba bytea, bav bytea[], j jsonb, tv tsvector, ua uuid[], da date[], v int
);
ALTER TABLE unsent
    ALTER ia SET STORAGE EXTERNAL, ALTER ta SET STORAGE EXTERNAL, ALTER ba SET STORAGE EXTERNAL,
    ALTER bav SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, ALTER tv SET STORAGE EXTERNAL,
    ALTER ua SET STORAGE EXTERNAL, ALTER da SET STORAGE EXTERNAL;
