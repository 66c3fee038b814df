CREATE TABLE country (country_id smallint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, country varchar(50) NOT NULL);
CREATE TABLE city (
    city_id smallint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
    city varchar(50) NOT NULL,
    country_id smallint unsigned NOT NULL,
    location point,
    CONSTRAINT city_country FOREIGN KEY (country_id) REFERENCES country (country_id) ON UPDATE CASCADE
);
CREATE TABLE film (
    film_id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
    title varchar(128) NOT NULL,
    description text,
    release_year year,
    rental_rate decimal(4,2) NOT NULL DEFAULT 4.99,
    length smallint unsigned,
    rating enum('G','PG','PG-13','R','NC-17') DEFAULT 'G',
    special_features set('Trailers','Commentaries','Deleted Scenes','Behind the Scenes'),
    hours decimal(6,2) GENERATED ALWAYS AS (length / 60) VIRTUAL,
    label varchar(200) GENERATED ALWAYS AS (concat(title, ' (', rating, ')')) STORED,
    last_update timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    KEY by_title (title)
);
CREATE TABLE customer (
    customer_id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
    email varchar(50),
    city_id smallint unsigned,
    is_active bit(1) NOT NULL DEFAULT b'1',
    picture blob,
    birthday date,
    CONSTRAINT customer_city FOREIGN KEY (city_id) REFERENCES city (city_id)
);
CREATE TABLE rental (
    rental_id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
    customer_id int unsigned NOT NULL,
    film_id int unsigned NOT NULL,
    rented_at datetime(3) NOT NULL,
    kept_for time(1),
    CONSTRAINT rental_customer FOREIGN KEY (customer_id) REFERENCES customer (customer_id),
    CONSTRAINT rental_film FOREIGN KEY (film_id) REFERENCES film (film_id)
);
CREATE TABLE film_actor (actor varchar(40) COLLATE utf8mb4_unicode_ci, film_id int unsigned, PRIMARY KEY (actor, film_id));
CREATE VIEW film_list AS SELECT f.film_id, f.title, count(r.rental_id) AS rentals
    FROM film f LEFT JOIN rental r ON r.film_id = f.film_id GROUP BY f.film_id, f.title;
CREATE TRIGGER film_trigger BEFORE UPDATE ON film FOR EACH ROW SET NEW.description = concat(ifnull(NEW.description, ''), '.')
