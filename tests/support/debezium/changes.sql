-- each part that ends with an empty line is executed by itself

INSERT INTO orders (id, customer) VALUES (3, 'cy')

UPDATE orders SET note = 'y' WHERE id = 1

UPDATE orders SET id = 30 WHERE id = 3

DELETE FROM orders WHERE id = 2

BEGIN;
INSERT INTO orders (id, customer) VALUES (4, 'd');
INSERT INTO pairs VALUES ('x', 1, 'v');
UPDATE orders SET note = 'z' WHERE id = 4;
COMMIT

UPDATE pairs SET b = 'y' WHERE a = 1

DELETE FROM pairs

INSERT INTO nokey VALUES (1, 'a')

UPDATE nokey SET w = 'b'

DELETE FROM nokey

INSERT INTO fullid VALUES (1, 'a', 'b')

UPDATE fullid SET v = 'c'

UPDATE fullid SET id = 2

DELETE FROM fullid

INSERT INTO toasty SELECT 1, string_agg(md5(i::text), ''), 1 FROM generate_series(1, 100) i

UPDATE toasty SET v = 2

UPDATE toasty SET id = 7

INSERT INTO "Odd.name" VALUES (1, 'ü')

INSERT INTO types VALUES (
    1, true, -7, 2147483647, 9223372036854775807, 4000000000, 0.1, 1e300,
    12.50, 1234567890123456789012345678.0123456789, 1234.5600, 12345, 1.5,
    E'a"b\\c\nd\t\u0001', 'grüße', 'ab', '\xdeadbeef', '6ba7b810-9dad-11d1-80b4-00c04fd430c8',
    '2024-02-29', '23:59:59.123456', '12:00:00.5', '12:00:00.5+05:30', '2024-02-29 23:59:59.5', '2024-02-29 23:59:59',
    '2024-02-29 23:59:59.123', '2024-02-29 23:59:59.5+02', '2024-02-29 23:59:59+02',
    '1 year 2 mons -3 days 04:05:06.789', '{"a": [1, null]}', '{"a": [1, null], "b": 1.50}', 'it''s ok',
    '{1,NULL,3}', '{"a,b",NULL,""}', '{1.50,NULL}', '{1.5,2}', '{2024-02-29}', '{"2024-02-29 23:59:59.5"}',
    '{"2024-02-29 23:59:59.5+02"}', ARRAY['\x00ff'::bytea], '{t,f,NULL}', '{0.1,NULL}',
    '{6ba7b810-9dad-11d1-80b4-00c04fd430c8}', ARRAY['{"a":1}'::jsonb], ARRAY['1 day'::interval],
    ARRAY['12:00:00.5'::time], ARRAY['sad'::mood],
    '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', B'1', B'1010101010', B'101', '(1.5,2)', '(2,2),(1,1)', '12.34',
    '[1,5)', '[1.5,2.5]', '[2024-01-01 00:00, 2024-01-02 00:00)', '[2024-01-01 00:00+00, 2024-01-02 00:00+00)',
    '[2024-01-01, 2024-01-05]', 'fat cat', 'pg_class', '(1,x)', 5, '0/16B3748', 'z', 'nam', '{[1,3),[5,8)}'
)

INSERT INTO types (id) VALUES (2)

DELETE FROM types WHERE id = 1

INSERT INTO edges VALUES (
    1, 100, 0, B'000', B'0000000000', B'1', '24:00:00+00', '-1 year -2 mons 3 days -04:05:06.000789',
    '2024-02-29 23:59:59.52+00', '12:00:00.19+05:30', '-infinity', '-infinity', '2024-02-29 23:59:59.987', '-infinity',
    '24:00', 'NaN', '-Infinity'
)

INSERT INTO edges VALUES (
    2, -0.50, 0.000, B'', B'1000000000', B'00000000111111111', '00:00:00-15:59', '1 mon', '2024-02-29 23:59:59+00',
    '23:59:59.999999-01', 'infinity', 'infinity', '1969-12-31 23:59:59.99', 'infinity', '00:00:00.000001', 1e-7, 1e20
)

INSERT INTO edges VALUES (
    3, 12300, 1e20, NULL, NULL, NULL, NULL, '00:00:00.000001', NULL, NULL, '0044-03-15 BC', '0044-03-15 12:00 BC',
    NULL, '0044-03-15 12:00+00 BC', '00:00', '-0', '-0'
)

INSERT INTO edges VALUES (
    4, -12345678901234567890.5, 128, NULL, NULL, NULL, NULL, '178000000 years', NULL, NULL, '12024-03-15',
    '12024-03-15 12:00', NULL, '12024-03-15 12:00+00', '23:59:59.999999', 1, 100
)

INSERT INTO edges (id, n, n2, iv, ts) VALUES (5, -128, 255, '-00:00:00.5', '1969-12-31 23:59:59.999999')

INSERT INTO unsent SELECT 1, (SELECT array_agg(n) FROM generate_series(1, 700) n), array_agg(md5(i::text)),
    string_agg(md5(i::text), '')::bytea, array_agg(md5(i::text)::bytea), to_jsonb(array_agg(md5(i::text))),
    string_agg(md5(i::text), ' ')::tsvector, (SELECT array_agg(md5(n::text)::uuid) FROM generate_series(1, 200) n),
    (SELECT array_agg('2024-01-01'::date + n) FROM generate_series(1, 700) n), 1
    FROM generate_series(1, 90) i

UPDATE unsent SET v = 2

TRUNCATE orders

TRUNCATE orders, pairs

SELECT pg_logical_emit_message(true, 'pre', 'hello')

ALTER TABLE orders ADD COLUMN extra integer

INSERT INTO orders (id, customer, extra) VALUES (9, 'e', 5)
